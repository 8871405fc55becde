"""Dictionaries on disk and on hubs: the layouts of EleutherAI's `sparsify` and of SAELens.

sparsify: a folder for each hook point, ``layers.6.mlp``, with ``cfg.json`` and ``sae.safetensors``. SAELens:
``cfg.json`` and ``sae_weights.safetensors``, the hook point in the configuration. Of both what stands at an FFN is
read: SAEs of its output, and transcoders from its input to its output.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from corrigenda.dictionaries.dictionary import FeatureDictionary
from corrigenda.errors import DamagedFileError, SettingsError
from corrigenda.models.bare import BareModel
from corrigenda.system.files import expanded, write_json, write_tensors
from corrigenda.system.hub import why_unreachable
from corrigenda.system.plain_data import read_json

CONFIG, SPARSIFY, SAELENS = "cfg.json", "sae.safetensors", "sae_weights.safetensors"
HOOK = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.mlp$")
"""The hook point of an FFN as a module's name, as transformers has it."""
BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
"""A hook point in TransformerLens's names."""
INPUT, OUTPUTS = "mlp.hook_in", ("hook_mlp_out", "mlp.hook_out")
NORMALIZED = "hook_normalized"
"""Of TransformerLens's norms what is there before their own weights, which is not what the FFN reads."""
PLAIN: dict[str, tuple[Any, ...]] = {
    "normalize_activations": (None, "none"),
    "reshape_activations": (None, "none"),
    "hook_head_index": (None,),
}
PLAIN |= {"finetuning_scaling_factor": (None, False), "activation": (None, "topk")}
PLAIN |= dict.fromkeys(("embed_skip", "gram_lookup", "signed"), (None, False))
"""By setting, the values with which a dictionary is what `FeatureDictionary` computes."""
KINDS = {"standard": "relu", "topk": "topk", "jumprelu": "jumprelu", "transcoder": "relu", "skip_transcoder": "relu"}
KINDS |= {"jumprelu_transcoder": "jumprelu", "jumprelu_skip_transcoder": "jumprelu"}
"""By SAELens's architecture, what activates."""


@dataclass(frozen=True)
class _Read:
    """What a folder holds: where, its configuration, its tensors, which are used up; and the layer that was named."""

    place: str
    said: Mapping[str, Any]
    tensors: dict[str, Tensor]
    layer: int | None

    def take(self, name: str, *shape: int | None) -> Tensor:
        """A tensor, in float32; None in the shape for a length that may be any."""
        if name not in self.tensors:
            raise DamagedFileError(f"{self.place}: there is no tensor {name}; fetch the dictionary again")
        found = self.tensors.pop(name).float().clone()  # a file's tensors lie at any address
        if found.ndim != len(shape) or any(
            n is not None and n != size for n, size in zip(shape, found.shape, strict=True)
        ):
            wanted = ", ".join("any" if n is None else str(n) for n in shape)
            raise DamagedFileError(
                f"{self.place}: {name} has the shape {tuple(found.shape)}, not ({wanted}); fetch it again"
            )
        if not bool(found.isfinite().all()):
            raise DamagedFileError(f"{self.place}: {name} is not finite; fetch the dictionary again")
        return found

    def number(self, name: str, most: int, said: Mapping[str, Any] | None = None) -> int:
        """A whole number of the configuration, from 1 on."""
        found = (self.said if said is None else said).get(name)
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= most:
            raise DamagedFileError(f"{self.place}: {name}={found!r} in {CONFIG} must be a whole number, 1 to {most}")
        return found

    def refuse(self, what: str, then: str = "name another dictionary") -> ValueError:
        """What to raise of what is not read."""
        return ValueError(f"{self.place}: {what}; {then}")


def read_dictionary(source: str | Path, layer: int | None = None) -> FeatureDictionary:
    """A published dictionary, or one that was trained here: a folder, or a hub's id with the folder in it.

    The layer is the FFN's, where the folder's name (``owner/name/layers.6.mlp``) does not say it; of a folder that has
    several dictionaries (``owner/name``) it says which. Raises ConnectionError: the hub cannot be reached, and its
    cache has no copy; DamagedFileError: a file cannot be read, or does not fit the others; FileNotFoundError: there is
    no dictionary; ValueError: it is of another hook point than an FFN's, or has what is not read.
    """
    folder = expanded(source)
    config, weights = _local(folder, layer) if folder.is_dir() else _from_hub(str(source), layer)
    place = str(config.parent)
    try:
        said, tensors = read_json(config), load_file(weights)
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedFileError(f"{place} is damaged ({str(error).splitlines()[0]}); fetch it again") from None
    if not isinstance(said, dict):
        raise DamagedFileError(f"{config} is damaged (it holds no settings); fetch it again")
    read = _Read(place, said, tensors, layer)
    for name, plain in PLAIN.items():
        if said.get(name) not in plain:
            raise read.refuse(f"{name}={said[name]!r} is not read")
    found = (_sparsify if weights.name == SPARSIFY else _saelens)(read)
    if tensors:
        raise read.refuse(f"it has tensors that are not read ({', '.join(sorted(tensors))})")
    return found


def dictionary_for(lm: BareModel, what: str, source: str | Path | None, layer: int | None) -> FeatureDictionary:
    """As `read_dictionary`, of settings (`what`, for the message), and of a model that it has to fit.

    Raises:
        SettingsError: the settings name none.
        ValueError: as `read_dictionary` and `FeatureDictionary.require` say.
    """
    if source is None:
        raise SettingsError(
            f"{what}: dictionary=None names no dictionary; give the folder of one (corrigenda dictionary makes it)"
        )
    found = read_dictionary(source, layer)
    found.require(lm)
    return found


def write_dictionary(dictionary: FeatureDictionary, folder: str | Path) -> Path:
    """Writes a dictionary of TopK in sparsify's layout, into a folder for its hook point, which it returns.

    Raises:
        ValueError: it is of another kind.
    """
    if dictionary.k is None:
        raise ValueError(f"{dictionary.name}: sparsify's layout has dictionaries of TopK alone, and this has no k")
    place = Path(folder) / f"layers.{dictionary.layer}.mlp"
    transcode, bias = dictionary.reads == "input", dictionary.encoder_bias
    if not transcode and not dictionary.centred:
        bias = bias + dictionary.encoder @ dictionary.decoder_bias
    tensors = {"encoder.weight": dictionary.encoder, "encoder.bias": bias}
    tensors |= {"W_dec": dictionary.decoder.clone(), "b_dec": dictionary.decoder_bias}
    if dictionary.skip is not None:
        tensors["W_skip"] = dictionary.skip
    n, width = dictionary.encoder.shape
    said = {"activation": "topk", "expansion_factor": max(1, n // width), "normalize_decoder": True, "num_latents": n}
    said |= {"k": dictionary.k, "multi_topk": False, "skip_connection": dictionary.skip is not None}
    write_tensors(place / SPARSIFY, tensors, replaces=place / CONFIG)
    write_json(place / CONFIG, said | {"transcode": transcode, "d_in": width})
    return place


def _local(folder: Path, layer: int | None) -> tuple[Path, Path]:
    """The files of a dictionary in a folder, or in the one below it that is the layer's."""
    if not (folder / CONFIG).is_file():
        below = sorted(each.parent for each in folder.glob(f"*/{CONFIG}"))
        mine = [each for each in below if layer is not None and each.name == f"layers.{layer}.mlp"]
        if not mine:
            names = f"it has {', '.join(each.name for each in below[:8])}: name one" if below else f"no {CONFIG} in it"
            raise FileNotFoundError(f"{folder} holds no dictionary ({names})")
        folder = mine[0]
    for name in (SPARSIFY, SAELENS):
        if (folder / name).is_file():
            return folder / CONFIG, folder / name
    raise FileNotFoundError(f"{folder} holds no dictionary: there is neither {SPARSIFY} nor {SAELENS} in it")


def _from_hub(source: str, layer: int | None) -> tuple[Path, Path]:
    """The local copies of a dictionary's files on a hub, fetched unless its cache has them."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    owner, _, rest = source.partition("/")
    name, _, inside = rest.partition("/")
    if not name or Path(source).is_absolute() or source.startswith((".", "~")):
        raise FileNotFoundError(f"there is no folder {source}; name a dictionary's folder, or owner/name/layers.6.mlp")
    inside = inside or ("" if layer is None else f"layers.{layer}.mlp")
    unreachable = why_unreachable("HF_HUB_OFFLINE")
    why = ""
    for file in (SPARSIFY, SAELENS):
        paths = [f"{inside}/{each}".lstrip("/") for each in (CONFIG, file)]
        try:
            found = [Path(hf_hub_download(f"{owner}/{name}", p, local_files_only=bool(unreachable))) for p in paths]
        except (RepositoryNotFoundError, HFValidationError) as error:
            raise FileNotFoundError(
                f"no dictionary {source!r} on the hub, or no access ({str(error).splitlines()[0]}); check its name"
            ) from None
        except OSError as error:
            why = f"{unreachable}; its cache has no copy" if unreachable else str(error).splitlines()[0]
        else:
            return found[0], found[1]
    raise ConnectionError(
        f"cannot read the dictionary {source!r} from the hub ({why}); connect to the network, check the folder's name "
        "(owner/name/layers.6.mlp), or download the folder and name it"
    )


def _hooked(read: _Read, hook: str, named: bool = False) -> tuple[int, str, bool]:
    """The layer of a hook point, "input", "output" or "" (both), and whether it may be behind a norm of the block.

    With `named` the layer that was given may stand for a name that says nothing.
    """
    if found := HOOK.search(hook):
        return _layer(read, int(found[1])), "", False
    found = BLOCK.fullmatch(hook)
    if found and found[2] in (INPUT, *OUTPUTS):
        return _layer(read, int(found[1])), "input" if found[2] == INPUT else "output", found[2] != "mlp.hook_out"
    if found and found[2].endswith(NORMALIZED):
        raise read.refuse(f"the hook point {hook!r} lies before the norm's own weights", "name one of the FFN itself")
    if named and read.layer is not None and not found and "." not in hook:
        return read.layer, "", False
    raise read.refuse(
        f"the hook point {hook!r} is not an FFN's", "name a dictionary of an FFN (layers.6.mlp, blocks.6.hook_mlp_out)"
    )


def _layer(read: _Read, layer: int) -> int:
    if read.layer not in (None, layer):
        raise read.refuse(f"it is of layer {layer}, and layer {read.layer} is asked for")
    return layer


def _sparsify(read: _Read) -> FeatureDictionary:
    encoder = read.take("encoder.weight", None, None)
    n, width = encoder.shape
    layer, _, _ = _hooked(read, Path(read.place).name, named=True)
    transcode, skips = (read.said.get(name, False) is True for name in ("transcode", "skip_connection"))
    if skips and not transcode:
        raise read.refuse("a skip connection without transcode=true is not read: what it skips is not said")
    return FeatureDictionary(
        layer=layer,
        encoder=encoder,
        encoder_bias=read.take("encoder.bias", n),
        decoder=read.take("W_dec", n, width),
        decoder_bias=read.take("b_dec", width),
        k=read.number("k", n),
        skip=read.take("W_skip", width, width) if skips else None,
        reads="input" if transcode else "output",
        centred=not transcode,
        name=read.place,
    )


def _saelens(read: _Read) -> FeatureDictionary:
    more = read.said.get("metadata")
    said: dict[str, Any] = {**(more if isinstance(more, dict) else {}), **read.said}
    kind = _kind(read, said)
    encoder = read.take("W_enc", None, None).T.contiguous()
    n, width = encoder.shape
    layer, reads, behind = _hooked(read, str(said.get("hook_name")))
    out, wide = said.get("hook_name_out"), read.tensors["W_dec"].shape[-1] if "W_dec" in read.tensors else None
    transcoder = "transcoder" in str(said.get("architecture")) or bool(out and out != said.get("hook_name"))
    if transcoder:
        onto, side, behind = _hooked(read, str(out))
        if onto != layer or side == "input" or reads == "output":
            raise read.refuse(f"a transcoder from {said.get('hook_name')} to {out} is not one FFN's")
    elif reads == "input":
        raise read.refuse("it is of an FFN's input, which nothing is put back at")
    decoder, bias = read.take("W_dec", n, wide), read.take("b_enc", n)
    if said.get("rescale_acts_by_decoder_norm") is True:
        norms = decoder.norm(dim=1)
        encoder, bias, decoder = encoder * norms[:, None], bias * norms, decoder / norms[:, None]
    k = said if "k" in said else said.get("activation_fn_kwargs")
    return FeatureDictionary(
        layer=layer,
        encoder=encoder,
        encoder_bias=bias,
        decoder=decoder,
        decoder_bias=read.take("b_dec", wide),
        k=read.number("k", n, k if isinstance(k, dict) else {}) if kind == "topk" else None,
        threshold=read.take("threshold", n) if kind == "jumprelu" else None,
        skip=read.take("W_skip", wide, width) if "skip" in str(said.get("architecture")) else None,
        reads="input" if transcoder else "output",
        centred=not transcoder and said.get("apply_b_dec_to_input", True) is True,
        after_norm=behind,
        name=read.place,
    )


def _kind(read: _Read, said: Mapping[str, Any]) -> str:
    """What activates a dictionary of SAELens. Raises ValueError: it is not read, or the model was changed for it."""
    architecture, function = said.get("architecture", "standard"), said.get("activation_fn", "relu")
    function = said.get("activation_fn_str", function)
    if architecture not in KINDS or function not in ("relu", "topk"):
        known = ", ".join(KINDS)
        raise read.refuse(f"architecture={architecture!r} with {function!r} is not read", f"name one of {known}")
    changed = said.get("model_from_pretrained_kwargs")
    for name in ("center_writing_weights", "fold_ln"):
        if isinstance(changed, dict) and changed.get(name):
            raise read.refuse(f"it is of a model changed by {name}", "name one of the model as it is")
    return "topk" if function == "topk" else KINDS[architecture]
