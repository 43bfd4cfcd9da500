"""Replicas of a server on Ray Serve, which Ray starts and ends by the number of requests.

serve run on_ray:application, in this folder, with the models in MHA_NATIVE_SERVE_MODELS ("name=path name=path")
"""

import os

from mha_native.server import Config
from mha_native.server.ray_serve import deployment

models = dict(given.split("=", 1) for given in os.environ["MHA_NATIVE_SERVE_MODELS"].split())
application = deployment(Config(models), replicas=(1, 4), num_cpus=2)
