from tests.http.conftest import held, inline

__all__ = ["held", "inline"]
