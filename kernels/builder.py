"""Ask an installed `TritonAttnBackend` for the metadata of verify steps: eagerly, and through a captured graph.

Everything around the backend is made up and as plain as can be: CPU tensors, one small attention layer, a page
table whose slots are all different. What is computed is computed by the installed file.
"""

from __future__ import annotations

import contextlib
import inspect
import types
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

import torch

from . import installed

CONTEXT_LEN = 1024
MAX_BS = 4
KV_SPLITS = 8
HEADS, HEAD_DIM = 2, 16

# Fields that are compared, in the order in which a document has them.
FIELDS = ("qo_indptr", "kv_indptr", "kv_indices", "mask_indptr", "max_extend_len")


class Batch(NamedTuple):
    """One verify step. prefix_lens: committed tokens of each request, the draft tree not counted; rows: the row of
    each request in the page table; width: draft tokens a request, root included (`draft_token_num`)."""

    prefix_lens: List[int]
    rows: List[int]
    width: int

    @property
    def mask_cells(self) -> int:
        return sum(self.width * (prefix + self.width) for prefix in self.prefix_lens)


def slot(row: int, position: int) -> int:
    """Pool slot of a token in the made-up page table; each is used once, and none is zero."""
    return 1 + row * CONTEXT_LEN + (CONTEXT_LEN - 1 - position)


def _req_to_token() -> torch.Tensor:
    # One row more than requests, so that row numbers are not request numbers.
    rows = [[slot(row, position) for position in range(CONTEXT_LEN)] for row in range(MAX_BS + 1)]
    return torch.tensor(rows, dtype=torch.int32)


class _Translator:
    """What newer releases fill `kv_indices` through: here ids need no translation."""

    is_translating = False
    reads_are_translated = False

    def __init__(self, req_to_token: torch.Tensor) -> None:
        self.req_to_token = req_to_token

    def pack_read_stream(self, plan: Any = None, **given: Any) -> bool:
        """Writes the slots of request i to out[indptr[i] : indptr[i] + seq_lens[i]]."""
        starts = given.get("kv_start_idx")
        for i, length in enumerate(given["seq_lens"].tolist()):
            first = int(starts[i]) if starts is not None else 0
            at = int(given["indptr"][i])
            row = self.req_to_token[int(given["req_pool_indices"][i])]
            given["out"][at : at + length] = row[first : first + length].to(given["out"].dtype)
        return True

    def fill_packed_read_stream(self, **given: Any) -> bool:
        return self.pack_read_stream(None, **given)

    def build_index_table(self, **given: Any) -> Any:
        return installed.Loose(
            ids=self.req_to_token,
            row_ids=given["req_pool_indices"],
            row_stride=self.req_to_token.stride(0),
            entry_page_size=1,
            is_translated=False,
        )

    def index_table_for_batch(self, forward_batch: Any) -> Any:
        return self.build_index_table(req_pool_indices=forward_batch.req_pool_indices)

    def make_capture_tables(self, **given: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"the KV index translator's {name}() is not known here")


@contextlib.contextmanager
def nothing_is_compiled() -> Iterator[None]:
    """The constructor marks its kernels as not to be compiled, for which torch would load its whole compiler (1.2 s).

    Nothing is compiled here, so the mark can be left out.
    """
    disable = torch.compiler.disable
    torch.compiler.disable = lambda function: function
    try:
        yield
    finally:
        torch.compiler.disable = disable


def _runner(server_args: Any, req_to_token: torch.Tensor, setting: int) -> Any:
    value_buffer = torch.empty(1, HEADS, HEAD_DIM)
    return installed.Loose(
        server_args=server_args,
        req_to_token_pool=installed.Loose(size=req_to_token.shape[0], req_to_token=req_to_token),
        token_to_kv_pool=installed.Loose(
            start_layer=0, get_value_buffer=lambda layer: value_buffer, get_v_head_dim=lambda: HEAD_DIM
        ),
        kv_index_translator=_Translator(req_to_token),
        decode_num_tokens_per_req=lambda: setting,
        device="cpu",
        gpu_id=0,
        page_size=1,
        dcp_size=1,
        dcp_rank=0,
        is_draft_worker=False,
        kv_cache_dtype=torch.float16,
        model_config=installed.Loose(
            attention_arch="MHA",
            num_attention_heads=HEADS,
            get_max_num_attention_heads=lambda *args: HEADS,
            get_num_kv_heads=lambda *args: HEADS,
            context_len=CONTEXT_LEN,
            head_dim=HEAD_DIM,
            v_head_dim=HEAD_DIM,
            swa_v_head_dim=HEAD_DIM,
            is_encoder_decoder=False,
            hf_config=installed.Loose(),
        ),
    )


def _server_args(setting: int) -> Any:
    return installed.Loose(
        speculative_num_draft_tokens=setting,
        speculative_num_steps=setting - 1,
        speculative_eagle_topk=1,
        triton_attention_num_kv_splits=KV_SPLITS,
        disable_cuda_graph=False,
        chunked_prefill_size=2048,
        enable_deterministic_inference=False,
    )


def _verify_input(batch: Batch) -> Any:
    """As a tree draft makes it; the width under every name that releases have had for it."""
    mask = torch.ones(batch.mask_cells, dtype=torch.uint8)
    return installed.Loose(
        draft_token_num=batch.width,
        num_tokens_per_req=batch.width,
        num_tokens_per_batch=batch.width,
        custom_mask=mask,
        topk=1,
    )


class Builder:
    """One backend, made for a server whose speculative_num_draft_tokens is `setting`."""

    def __init__(self, module: types.ModuleType, setting: int) -> None:
        """Raises whatever the installed file raises."""
        self._setting = setting
        self._mode = getattr(getattr(module, "ForwardMode", None), "TARGET_VERIFY", installed.ForwardMode.TARGET_VERIFY)
        server_args = _server_args(setting)
        installed.use_server_args(server_args)
        self._server_args = server_args
        with nothing_is_compiled():
            self.backend = module.TritonAttnBackend(_runner(server_args, _req_to_token(), setting))
        self._captured: Dict[int, Any] = {}
        self._capture_width: Optional[int] = None

    def eager(self, batch: Batch) -> Dict[str, Any]:
        """The fields of FIELDS as lists and a number. Raises whatever the installed file raises."""
        installed.use_server_args(self._server_args)
        self.backend.init_forward_metadata(self._forward_batch(batch))
        return fields(self.backend.forward_metadata, batch)

    def graph(self, batch: Batch) -> Dict[str, Any]:
        """The same through static buffers: captured once for each batch size, refilled, and then read.

        The graph runner is as wide as the step, which is what a fork with a tree draft makes of it.
        """
        installed.use_server_args(self._server_args)
        if self._capture_width != batch.width:
            self._captured.clear()
            self._allocate(batch.width)
            self._capture_width = batch.width
        size = len(batch.rows)
        if size not in self._captured:
            self._captured[size] = self._capture(batch)
        self._replay(batch)
        return fields(self._captured[size], batch)

    def _allocate(self, width: int) -> None:
        method = self.backend.init_cuda_graph_state
        # 0.4.7 and older know the number of requests alone.
        given = {"max_num_tokens": MAX_BS * width} if "max_num_tokens" in _parameters(method) else {}
        method(MAX_BS, **given)

    def mask_buffer_cells(self) -> Optional[int]:
        """Cells of the buffer for the masks of captured graphs; None where this release has none that is known."""
        for name in ("cuda_graph_custom_mask", "_verify_mask"):
            found = getattr(self.backend, name, None)
            found = getattr(found, "buffer", found)
            if isinstance(found, torch.Tensor):
                return found.numel()
        return None

    def _capture(self, batch: Batch) -> Any:
        size = len(batch.rows)
        dummy = Batch([1] * size, list(range(size)), batch.width)
        if self._merged():
            self.backend.init_forward_metadata_out_graph(self._forward_batch(dummy), in_capture=True)
        else:
            self.backend.init_forward_metadata_capture_cuda_graph(
                size,
                size * batch.width,
                torch.tensor(dummy.rows),
                torch.tensor(dummy.prefix_lens),
                None,
                self._mode,
                _verify_input(dummy),
            )
        return self.backend.forward_metadata

    def _replay(self, batch: Batch) -> None:
        if self._merged():
            self.backend.init_forward_metadata_out_graph(self._forward_batch(batch))
            return
        seq_lens = torch.tensor(batch.prefix_lens)
        given = (
            len(batch.rows),
            torch.tensor(batch.rows),
            seq_lens,
            sum(batch.prefix_lens),
            None,
            self._mode,
            _verify_input(batch),
        )
        method = self.backend.init_forward_metadata_replay_cuda_graph
        # 0.4.4 and older have no copy of the lengths on the CPU.
        more = {"seq_lens_cpu": seq_lens} if "seq_lens_cpu" in _parameters(method) else {}
        method(*given, **more)

    def _merged(self) -> bool:
        """Capture and replay are one method, from 0.5.13 on."""
        return "init_forward_metadata_out_graph" in vars(type(self.backend))

    def _forward_batch(self, batch: Batch) -> Any:
        seq_lens = torch.tensor(batch.prefix_lens)
        return installed.Loose(
            forward_mode=self._mode,
            batch_size=len(batch.rows),
            req_pool_indices=torch.tensor(batch.rows),
            seq_lens=seq_lens,
            seq_lens_sum=sum(batch.prefix_lens),
            seq_lens_cpu=seq_lens,
            spec_info=_verify_input(batch),
        )


def _parameters(method: Any) -> Sequence[str]:
    return tuple(inspect.signature(method).parameters)


def fields(metadata: Any, batch: Batch) -> Dict[str, Any]:
    """FIELDS of a ForwardMetadata, or of the tuple that it was before 0.4.7. kv_indices: as many as are read."""
    if isinstance(metadata, tuple):
        kv_indptr, kv_indices, qo_indptr, _, mask_indptr = metadata[-5:]
        max_extend_len = next((part for part in metadata[:-5] if isinstance(part, int)), None)
        found: Sequence[Any] = (qo_indptr, kv_indptr, kv_indices, mask_indptr, max_extend_len)
    else:
        found = tuple(getattr(metadata, name) for name in FIELDS)
    values = {name: _plain(value) for name, value in zip(FIELDS, found)}
    if isinstance(values["kv_indices"], list):
        values["kv_indices"] = values["kv_indices"][: sum(batch.prefix_lens)]
    return values


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


def wanted(batch: Batch) -> Dict[str, Any]:
    """What the attention kernel needs, in plain arithmetic (docs: what each offset means).

    qo_indptr:   the rows of request i are [i * width, (i + 1) * width).
    kv_indptr:   its prefix is [sum of the lengths before it, + its own length) of kv_indices.
    mask_indptr: its mask begins where those before it, of width * (prefix + width) cells each, end. The kernel
                 reads beginnings alone, so the end of the last one is not part of this.
    """
    starts, prefixes = [0], [0]
    for length in batch.prefix_lens:
        prefixes.append(prefixes[-1] + length)
        starts.append(starts[-1] + batch.width * (length + batch.width))
    return {
        "qo_indptr": [batch.width * i for i in range(len(batch.rows) + 1)],
        "kv_indptr": prefixes,
        "kv_indices": [
            slot(row, position) for row, length in zip(batch.rows, batch.prefix_lens) for position in range(length)
        ],
        "mask_indptr": starts[:-1],
        "max_extend_len": batch.width,
    }
