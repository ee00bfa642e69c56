#!/bin/sh
# Everything that growctl measures on a GPU, in under ten minutes, into one JSON file. From anywhere:
#   benchmarks/gpu/run.sh [--deadline SECONDS] [--output FILE] [--only SECTION,...] [--trial]
# PYTHON names the interpreter; packages that it lacks may lie in a folder on PYTHONPATH.
cd "$(dirname "$0")/../.." || exit 1
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
# Tiles that triton has timed once are taken by the sections that follow.
export TRITON_CACHE_AUTOTUNING="${TRITON_CACHE_AUTOTUNING:-1}"
exec "${PYTHON:-python3}" -m benchmarks.gpu "$@"
