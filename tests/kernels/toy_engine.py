"""A backend of a few lines, in the place where SGLang has its own: for what no release does."""

from __future__ import annotations

from pathlib import Path

BACKEND = '''
import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.runtime_context import get_spec
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from dataclasses import dataclass
{top}

@dataclass
class ForwardMetadata:
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    kv_indices: torch.Tensor
    mask_indptr: torch.Tensor
    max_extend_len: int


class TritonAttnBackend(AttentionBackend):
    def __init__(self, model_runner):
        self.num_draft_tokens = get_spec().speculative_num_draft_tokens
        self.req_to_token = model_runner.req_to_token_pool.req_to_token

    def init_forward_metadata(self, forward_batch):
        """Called is_target_verify in the engine."""
        self.forward_metadata = self.metadata(forward_batch, "eager")

    def init_cuda_graph_state(self, max_bs, max_num_tokens):
        self.cuda_graph_custom_mask = torch.zeros({cells}, dtype=torch.uint8)
        self.static = {{}}

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        new = self.metadata(forward_batch, "graph")
        if in_capture:
            self.static[len(forward_batch.req_pool_indices)] = self.forward_metadata = new
        else:
            vars(self.static[len(forward_batch.req_pool_indices)]).update(vars(new))

    def metadata(self, forward_batch, path):
        assert forward_batch.forward_mode == ForwardMode.TARGET_VERIFY and not forward_batch.forward_mode.is_decode()
        S, D = self.num_draft_tokens, forward_batch.spec_info.draft_token_num
        lens = forward_batch.seq_lens
        bs = len(lens)
        {body}
        rows = [self.req_to_token[row, :n] for row, n in zip(forward_batch.req_pool_indices, lens.tolist())]
        kv_indptr = torch.tensor([0, *torch.cumsum(lens, 0).tolist()])
        mask_indptr = torch.tensor([0, *torch.cumsum(mask_width * (lens + mask_width), 0).tolist()])
        return ForwardMetadata(width * torch.arange(bs + 1), kv_indptr, torch.cat(rows), mask_indptr, longest)
'''

RIGHT = "width = mask_width = longest = D"


def install(site_packages: Path, body: str = RIGHT, *, top: str = "", cells: str = "max_bs * 10**6") -> Path:
    """body: sets width, mask_width and longest from S, D, bs and path; top: further code of the module; cells: size of
    the mask buffer. Returns site_packages."""
    file = site_packages / "sglang" / "srt" / "layers" / "attention" / "triton_backend.py"
    file.parent.mkdir(parents=True)
    file.write_text(BACKEND.format(top=top, body=body, cells=cells), encoding="utf-8")
    (site_packages / "sglang-9.9.dist-info").mkdir()
    (site_packages / "sglang-9.9.dist-info" / "METADATA").write_text("Name: sglang\nVersion: 9.9\n", encoding="utf-8")
    return site_packages
