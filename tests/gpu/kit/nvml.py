"""The management library, as it is outside of every share. ctypes over libnvidia-ml.so.1."""
import ctypes
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p, create_string_buffer

UNKNOWN = 2**64 - 1


class Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class Memory2(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = [("version", c_uint)] + [(name, c_ulonglong) for name in ("total", "reserved", "free", "used")]


class Process(ctypes.Structure):
    """nvmlProcessInfo_t of the functions ending in _v2 and _v3."""

    _fields_ = [("pid", c_uint), ("used", c_ulonglong), ("gi", c_uint), ("ci", c_uint)]


class Refused(Exception):
    """A function of NVML answered something else than success."""


class Nvml:
    """An initialised NVML."""

    def __init__(self, path="libnvidia-ml.so.1"):
        self.library = ctypes.CDLL(path)
        self.call("nvmlInit_v2")

    def call(self, name, *arguments):
        """Calls a function that answers with a code."""
        code = getattr(self.library, name)(*arguments)
        if code:
            raise Refused("%s: %d" % (name, code))

    def count(self):
        """The number of GPUs."""
        number = c_uint()
        self.call("nvmlDeviceGetCount_v2", byref(number))
        return number.value

    def device(self, index):
        """A handle, by index or UUID."""
        handle = c_void_p()
        if isinstance(index, int):
            self.call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
        else:
            self.call("nvmlDeviceGetHandleByUUID", c_char_p(index.encode()), byref(handle))
        return handle

    def text(self, name, *first):
        """A text that a function gives."""
        buffer = create_string_buffer(96)
        self.call(name, *first, buffer, c_uint(len(buffer)))
        return buffer.value.decode()

    def cuda_version(self):
        """The newest CUDA that the driver serves, as 12040."""
        number = c_int()
        self.call("nvmlSystemGetCudaDriverVersion_v2", byref(number))
        return number.value

    def index(self, handle):
        """The index of a device."""
        number = c_uint()
        self.call("nvmlDeviceGetIndex", handle, byref(number))
        return number.value

    def minor(self, handle):
        """The minor number of a device's node."""
        number = c_uint()
        self.call("nvmlDeviceGetMinorNumber", handle, byref(number))
        return number.value

    def memory(self, handle):
        """{total, free, used} by version 1, in bytes."""
        memory = Memory()
        self.call("nvmlDeviceGetMemoryInfo", handle, byref(memory))
        return {name: getattr(memory, name) for name, _ in Memory._fields_}

    def memory2(self, handle):
        """{total, reserved, free, used} by version 2, in bytes."""
        memory = Memory2(version=ctypes.sizeof(Memory2) | 2 << 24)
        self.call("nvmlDeviceGetMemoryInfo_v2", handle, byref(memory))
        return {name: getattr(memory, name) for name, _ in Memory2._fields_[1:]}

    def processes(self, handle, name="nvmlDeviceGetComputeRunningProcesses_v3"):
        """{pid: bytes used, or None where that is not known}."""
        number, found = c_uint(512), (Process * 512)()
        self.call(name, handle, byref(number), found)
        return {it.pid: None if it.used == UNKNOWN else it.used for it in found[: number.value]}

    def mig(self, handle):
        """Whether MIG is on."""
        now, later = c_uint(), c_uint()
        try:
            self.call("nvmlDeviceGetMigMode", handle, byref(now), byref(later))
        except Refused:
            return False
        return now.value == 1
