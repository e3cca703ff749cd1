"""Ends with 0 if the server in this container is ready: for HEALTHCHECK, which has no access token.

It knows where the server listens from the same variables as the server. The certificate is not looked at: nothing
leaves the container, and it is made for another name.
"""

import os
import ssl
import sys
import urllib.request

port = os.environ.get("HOLDFAST_LISTEN", "0.0.0.0:7420").rpartition(":")[2]
scheme = "https" if os.environ.get("HOLDFAST_TLS_CERT") else "http"
anybody = ssl.create_default_context()
anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
try:
    with urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}/readyz", timeout=4, context=anybody) as answer:
        sys.exit(answer.status != 200)
except OSError as error:
    sys.exit(str(error))
