import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from qkv.errors import QkvError
from qkv.parts import cuda

PROGRAMS = sorted(Path(cuda.__file__).parents[1].rglob("*.cu"))

SUM = """
extern "C" __global__ void scaled(float* y, const float* x, int n, float by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * by + SHIFT;
}
"""

TILE = """
struct alignas(64) Tiles { char bytes[128]; };
// A tile of 8 rows and 64 columns, brought by the copy engine, whose swizzle moves pieces of 16 bytes within a row.
extern "C" __global__ void copied(const __grid_constant__ Tiles tiles, unsigned short* y, int column, int row) {
    __shared__ alignas(1024) unsigned short tile[8 * 64];
    __shared__ alignas(8) unsigned long long done;
    unsigned there = (unsigned)__cvta_generic_to_shared(tile), flag = (unsigned)__cvta_generic_to_shared(&done);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(flag));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(flag), "r"(1024) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%2, %3}], [%4];" ::"r"(there), "l"(&tiles), "r"(column), "r"(row), "r"(flag)
                     : "memory");
    }
    __syncthreads();
    unsigned ready = 0;
    for (int turn = 0; !ready && turn < (1 << 20); ++turn)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(ready) : "r"(flag) : "memory");
    if (!ready) __trap();
    int r = threadIdx.x / 8, piece = threadIdx.x % 8;
    for (int i = 0; i < 8; ++i) y[r * 64 + piece * 8 + i] = tile[r * 64 + (piece ^ r) * 8 + i];
}
"""


@pytest.fixture(autouse=True)
def own_cache(request, tmp_path, monkeypatch):
    if request.node.get_closest_marker("gpu"):
        pytest.importorskip("cuda.bindings")
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "kept"))


class PretendedCompiler(ModuleType):
    """Stands for NVRTC where there is none: it keeps what it is handed, and its machine code is but blanks."""

    nvrtcResult = SimpleNamespace(NVRTC_SUCCESS=0)

    def __init__(self):
        super().__init__("cuda.bindings.nvrtc")
        self.handed = []

    def nvrtcVersion(self):
        return 0, 13, 0

    def nvrtcCreateProgram(self, source, name, count, headers, names):
        assert count == len(headers) == len(names)
        self.handed.append(dict(zip(names, headers, strict=True)))
        return 0, len(self.handed)

    def nvrtcCompileProgram(self, made, count, options):
        return (0,)

    def nvrtcGetCUBINSize(self, made):
        return 0, made

    def nvrtcGetCUBIN(self, made, code):
        return (0,)


@pytest.fixture
def compiler(monkeypatch):
    made, bindings = PretendedCompiler(), ModuleType("cuda.bindings")
    bindings.nvrtc = made
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    return made


def test_a_file_may_include_what_lies_beside_it_and_what_all_programs_share(tmp_path, compiler):
    file = tmp_path / "sum.cu"
    file.write_text(SUM)
    (tmp_path / "own.cuh").write_text("// own")
    cuda.compiled(file, (), "sm_90a")
    assert compiler.handed[0][b"own.cuh"] == b"// own"
    assert b"typedef unsigned int u32;" in compiler.handed[0][b"hopper.cuh"]


def test_a_file_is_compiled_anew_only_if_it_or_a_header_has_changed(tmp_path, compiler):
    file, header = tmp_path / "sum.cu", tmp_path / "own.cuh"
    file.write_text(SUM), header.write_text("// own")

    def compilations():
        cuda.compiled(file, (("SHIFT", 3),), "sm_90a")
        return len(compiler.handed)

    assert (compilations(), compilations()) == (1, 1)
    header.write_text("// changed")
    assert (compilations(), compilations()) == (2, 2)
    header.rename(tmp_path / "other.cuh")
    assert (compilations(), compilations()) == (3, 3)
    file.write_text(SUM + "// changed")
    assert (compilations(), compilations()) == (4, 4)


@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: file.name)
def test_all_that_our_programs_include_is_handed_over(file, compiler):
    cuda.compiled(file, (), "sm_90a")
    (handed,) = compiler.handed
    for text in (file.read_bytes(), *handed.values()):
        included = [line.split(b'"')[1] for line in text.splitlines() if line.startswith(b"#include")]
        assert set(included) <= set(handed)


@pytest.mark.gpu
def test_numbers_and_tensors_reach_a_program_which_is_kept(tmp_path):
    file = tmp_path / "sum.cu"
    file.write_text(SUM)
    x = torch.randn(1000, device="cuda")
    y = torch.empty_like(x)
    made = cuda.program(file, "scaled", (("SHIFT", 3),), 128)
    for early in (False, True):
        made.launch((8, 1), (y, x, 1000, 0.5), early=early)
        torch.testing.assert_close(y, x * 0.5 + 3)
    assert len(list((tmp_path / "kept" / "qkv" / "programs").glob("sum-*.cubin"))) == 1


@pytest.mark.gpu
def test_as_many_clusters_run_at_once_as_there_is_room_for(tmp_path):
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a GPU with clusters")
    file = tmp_path / "sum.cu"
    file.write_text(SUM)
    torch.zeros(1, device="cuda")  # whoever has a program has had a tensor before
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    large = cuda.program(file, "scaled", (("SHIFT", 2),), 128, 200 * 1024)  # of which a processor has room for one
    for cluster in (2, 4, 8):
        assert processors // cluster // 2 <= large.clusters_at_once(cluster) <= processors // cluster


@pytest.mark.gpu
def test_a_launch_is_recorded_like_any_other(tmp_path):
    file = tmp_path / "sum.cu"
    file.write_text(SUM)
    x = torch.zeros(100, device="cuda")
    y = torch.empty_like(x)
    made = cuda.program(file, "scaled", (("SHIFT", 1),), 128)
    made.launch((1, 1), (y, x, 100, 2.0))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made.launch((1, 1), (y, x, 100, 2.0))
    x.fill_(5.0)
    graph.replay()
    assert y.unique().tolist() == [11.0]


@pytest.mark.gpu
def test_the_copy_engine_brings_tiles_and_zeros_beyond_the_edge(tmp_path):
    file = tmp_path / "tile.cu"
    file.write_text(TILE)
    x = torch.arange(20 * 200, device="cuda").view(20, 200)[:, :192].bfloat16()
    y = torch.empty(8, 64, dtype=torch.bfloat16, device="cuda")
    made = cuda.program(file, "copied", (), 64)
    filled_up = torch.nn.functional.pad(x, (0, 64, 0, 8))
    for column, row in ((0, 0), (64, 8), (128, 16), (160, 3)):
        made.launch((1, 1), (cuda.tiles_of(x, 8, 64), y, column, row))
        assert torch.equal(y, filled_up[row : row + 8, column : column + 64])


@pytest.mark.gpu
def test_a_program_that_is_wrong_is_told(tmp_path):
    file = tmp_path / "wrong.cu"
    file.write_text('extern "C" __global__ void f() { nothing; }')
    with pytest.raises(QkvError, match=r"wrong\.cu cannot be compiled"):
        cuda.program(file, "f", (), 32)
