import argparse
import signal
import sys
import threading

from .server import DownstreamServer


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m downstream", description="A server to check links against.")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free port (default)")
    arguments = parser.parse_args()
    try:
        server = DownstreamServer(arguments.port)
    except OSError as error:
        print(f"Cannot listen on 127.0.0.1:{arguments.port}: {error.strerror}.", file=sys.stderr)
        return 1
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    print(f"Listening on {server.url}", flush=True)
    stop.wait()
    server.stop()
    server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
