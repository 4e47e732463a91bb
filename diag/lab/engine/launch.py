"""`python -m sglang.launch_server ...`, or vLLM's, on the embedded host ends up here (see `diag.lab.build`)."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any, Literal

Engine = Literal["sglang", "vllm"]

log = logging.getLogger("launch_server")


def main(site_packages: Path, argv: list[str], engine: Engine = "sglang") -> None:
    """Start the server for the engine installed in `site_packages`; returns when it is told to stop. engine: whose
    flags and HTTP it speaks; what computes is the same."""
    from diag.lab.engine import args as server_args
    from diag.lab.engine import args_vllm

    # Before the slow imports: a wrong flag must be refused at once.
    config: dict[str, Any] = {}
    if engine == "vllm":
        raw, config = args_vllm.parse(argv)
    else:
        raw = server_args.parse(argv)
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s", stream=sys.stderr)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before torch or transformers import triton
    log.info("server_args=%s", raw)

    import torch
    import uvicorn
    from transformers import AutoTokenizer

    from diag import bundle
    from diag.lab.engine.backend import InstalledBackend
    from diag.lab.engine.faults import draw
    from diag.lab.engine.http import Api, with_eos
    from diag.lab.engine.http_vllm import VllmApi
    from diag.lab.engine.model import Model
    from diag.lab.engine.scheduler import Scheduler

    torch.manual_seed(raw.random_seed)
    tokenizer = AutoTokenizer.from_pretrained(raw.model_path)
    fault = draw(raw.lab_fault, raw.lab_fault_chance, raw.lab_fault_above, raw.lab_fault_past, tokenizer)
    if raw.lab_fault:
        log.info("lab fault: %s", fault.name or f"{raw.lab_fault} was not drawn")
    model = Model(Path(raw.model_path), raw.num_slots, fault)
    args = with_eos(raw, tokenizer)
    log.info("Load weight end. type=%s, dtype=float32", type(model).__name__)

    req_to_token = torch.zeros(args.max_running_requests, args.context_length, dtype=torch.int32)
    backend = InstalledBackend(
        site_packages,
        server_args=args,
        req_to_token=req_to_token,
        num_attention_heads=model.num_attention_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        context_len=args.context_length,
    )
    installed = bundle.load("kernels.installed")
    file = site_packages / installed.BACKEND_FILE
    kernels = "triton interpreter" if installed.uses_triton() else "plain torch, without triton"
    log.info("Attention backend: %s, index kernels: %s", file, kernels)
    scheduler = Scheduler(args, model, backend, req_to_token, fault)
    if not args.disable_cuda_graph and args.draft_token_num is not None:
        log.info("Capture cuda graph end. bs=1..%d, width=%d", args.max_running_requests, args.draft_token_num)

    plan = {
        "attention_backend_file": str(file),
        "attention_backend_sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "index_kernels": kernels,
        "lab_fault_drawn": bool(fault.name),
    }
    if engine == "vllm":
        developer = os.environ.get("VLLM_SERVER_DEV_MODE") == "1"
        app = VllmApi(args, scheduler, tokenizer, config, developer).app()
    else:
        app = Api(args, scheduler, tokenizer, _version(site_packages), plan).app()
    log.info("The server is fired up and ready to roll!")
    uvicorn.run(app, host=args.host, port=args.port, log_level="warning", access_log=False)


def _version(site_packages: Path) -> str:
    for info in site_packages.glob("sglang-*.dist-info"):
        return PathDistribution(info).version
    return "unknown"
