"""`vllm bench serve`, a command that vLLM's CPU build lacks.

python -m tests.benchmarks.imports.vllm_bench --backend openai --base-url URL ...
"""

from __future__ import annotations

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser(description="vllm bench serve")
    add_cli_args(parser)
    main(parser.parse_args())
