"""One case of PyTorch under a share: pytorch.py CASE TOTAL, where TOTAL is the share in bytes. Its last word is "passed"."""
import sys

import torch

MIB = 1 << 20
CASE, TOTAL = sys.argv[1], int(sys.argv[2])


def fill(block=64 * MIB):
    """Allocates until nothing is left, and gives the blocks and what PyTorch said."""
    blocks = []
    try:
        while len(blocks) * block <= 2 * TOTAL:
            blocks.append(torch.empty(block, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        return blocks, str(error)
    raise AssertionError(f"{len(blocks) * block} bytes of a share of {TOTAL}, and no error")


def within(taken, limit, slack=1024 * MIB):
    """The context takes a part of the share, too."""
    assert limit - slack <= taken <= limit, f"{taken} of {limit}"


def views():
    free, total = torch.cuda.mem_get_info()
    assert total == TOTAL, (total, TOTAL)
    assert 0 < free <= total, (free, total)
    assert torch.cuda.device_count() == 1
    properties = torch.cuda.get_device_properties(0)
    assert properties.total_memory == TOTAL, properties
    assert f"{TOTAL // MIB}MB" in repr(properties), properties
    assert "H100" in properties.name and (properties.major, properties.minor) == (9, 0), properties
    before = free
    block = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    free, _ = torch.cuda.mem_get_info()
    assert before - free >= 512 * MIB, (before, free)
    del block


def limit():
    blocks, said = fill()
    taken = len(blocks)
    within(taken * 64 * MIB, TOTAL)
    assert f"total capacity of {TOTAL / 2**30:.2f} GiB" in said or "out of memory" in said, said
    if torch.cuda.get_allocator_backend() == "native":
        assert f"total capacity of {TOTAL / 2**30:.2f} GiB" in said, said
    # It runs on, and gets as much again.
    del blocks
    torch.cuda.empty_cache()
    blocks, _ = fill()
    assert abs(len(blocks) - taken) <= 1, (len(blocks), taken)
    blocks[:4] = []
    torch.empty(128 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()


def context():
    """The context of a process is as large as the node says, and counts."""
    torch.cuda.init()
    free, _ = torch.cuda.mem_get_info()
    assert TOTAL - free >= 256 * MIB, (TOTAL, free)
    blocks, _ = fill()
    within(len(blocks) * 64 * MIB, free)


def two():
    assert torch.cuda.device_count() == 2
    for device in ("cuda:0", "cuda:1"):
        with torch.cuda.device(device):
            assert torch.cuda.mem_get_info()[1] == TOTAL
            blocks, _ = fill()
            within(len(blocks) * 64 * MIB, TOTAL)
    try:
        torch.empty(1, device="cuda:2")
    except RuntimeError as error:
        assert "invalid device ordinal" in str(error), error
    else:
        raise AssertionError("a third GPU")


def fraction():
    torch.cuda.set_per_process_memory_fraction(0.5)
    blocks, _ = fill()
    within(len(blocks) * 64 * MIB, TOTAL // 2)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        return torch.full((1024,), at)


def workers():
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=3, pin_memory=True)
    seen = 0
    for batch in loader:
        assert batch.is_pinned()
        seen += len(batch.to("cuda", non_blocking=True))
    assert seen == 64, seen
    torch.cuda.synchronize()




def reader(questions, answers):
    tensor = questions.get()
    answers.put((tuple(tensor.shape), tensor.is_cuda, torch.cuda.mem_get_info()[0]))
    del tensor
    questions.get()


def sharing():
    import multiprocessing.reduction  # noqa: F401
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    questions, answers = context.Queue(), context.Queue()
    tensor = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    free, _ = torch.cuda.mem_get_info()
    child = context.Process(target=reader, args=(questions, answers))
    child.start()
    questions.put(tensor)
    shape, is_cuda, left = answers.get(timeout=120)
    assert (shape, is_cuda) == ((256 * MIB,), True)
    # The other process has a context of its own; the tensor counts once.
    assert free - left < 1024 * MIB, (free, left)
    questions.put(None)
    child.join()
    assert child.exitcode == 0


def greedy(barrier, answers):
    barrier.wait()
    blocks, _ = fill()
    answers.put(len(blocks))
    barrier.wait()


def processes():
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    barrier, answers = context.Barrier(2), context.Queue()
    children = [context.Process(target=greedy, args=(barrier, answers)) for _ in range(2)]
    for child in children:
        child.start()
    taken = sum(answers.get(timeout=300) for _ in children) * 64 * MIB
    for child in children:
        child.join()
        assert child.exitcode == 0
    within(taken, TOTAL, 2048 * MIB)


def graphs():
    graph = torch.cuda.CUDAGraph()
    place = torch.zeros(32 * MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.graph(graph):
        result = place + 1
    graph.replay()
    torch.cuda.synchronize()
    assert result.is_cuda
    # The graph's pool is its own until the graph is gone.
    blocks, _ = fill()
    graph.replay()
    torch.cuda.synchronize()
    del blocks, result
    graph.reset()
    torch.cuda.empty_cache()
    blocks, _ = fill()
    within(len(blocks) * 64 * MIB, TOTAL)


def nccl():
    import torch.distributed as dist

    assert torch.cuda.nccl.version() >= (2, 27)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29500", rank=0, world_size=1)
    tensor = torch.ones(1024, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    globals()[CASE]()
    print("passed")
