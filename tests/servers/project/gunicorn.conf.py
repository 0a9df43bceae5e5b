# Read by gunicorn from its working directory. Several servers at once must not share one control socket.
control_socket_disable = True
