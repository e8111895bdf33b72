"""Runs first in every Python that a rank starts, because PYTHONPATH begins with its directory.

It makes `import longboat` work if it is not installed, lets a bare `jax.distributed.initialize()` find its peers,
detects an MPI that came up as N jobs of size 1, writes stacks on SIGUSR1, and reports uncaught exceptions.
No failure in here may fail the user's program, and a sitecustomize that this one hides is run after it.

Old interpreters run this file too: plain syntax, standard library, and no imports that a bare start does not have.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class After(object):
    """A loader that calls `then(module)` once the module has been executed."""

    def __init__(self, loader, then):
        self.loader = loader
        self.then = then

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        self.then(module)

    def __getattr__(self, name):
        return getattr(self.loader, name)


class Hooks(object):
    """Finds modules as other finders do, and calls a hook once one is loaded."""

    def __init__(self, table):
        self.table = table
        self.busy = False

    def find_spec(self, name, path=None, target=None):
        if name not in self.table or self.busy:
            return None
        self.busy = True
        try:
            for finder in list(sys.meta_path):
                if finder is not self and hasattr(finder, "find_spec"):
                    spec = finder.find_spec(name, path, target)
                    if spec is not None:
                        if spec.loader is not None:
                            spec.loader = After(spec.loader, self.table[name])
                        return spec
        finally:
            self.busy = False
        return None


class Fallback(object):
    """`import longboat` where it is not installed: finds the copy that started this rank."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "longboat":
            return None
        from importlib.util import spec_from_file_location

        package = os.path.dirname(os.path.dirname(HERE))
        return spec_from_file_location(name, os.path.join(package, "__init__.py"), submodule_search_locations=[package])


def register_with_jax(clusters):
    """Add a ClusterEnv that reads the rank's variables, before all others."""

    class LongboatCluster(clusters.ClusterEnv):
        name = "longboat"

        @classmethod
        def is_env_present(cls):
            return "LONGBOAT_RUN_ID" in os.environ and "COORDINATOR_ADDRESS" in os.environ

        @classmethod
        def get_coordinator_address(cls, timeout_secs=None, override_coordinator_port=None):
            return os.environ["COORDINATOR_ADDRESS"]

        @classmethod
        def get_process_count(cls):
            return int(os.environ["NUM_PROCESSES"])

        @classmethod
        def get_process_id(cls):
            return int(os.environ["PROCESS_ID"])

        @classmethod
        def get_local_process_id(cls):
            return None

    types = getattr(clusters.ClusterEnv, "_cluster_types", None)
    if types and types[-1] is LongboatCluster:
        types.insert(0, types.pop())


def check_mpi_size(module):
    """Check that each process of mpirun sees all N processes, not only itself."""
    expected = int(os.environ["LONGBOAT_MPI_SIZE"])
    if not module.Is_initialized():
        return
    seen = module.COMM_WORLD.Get_size()
    if seen != expected:
        sys.stderr.write(
            "longboat: mpi mismatch: mpirun started %d ranks, but this process sees a world of %d.\n"
            "The MPI library it loaded is not the one mpirun belongs to: %s\n"
            % (expected, seen, module.Get_library_version().splitlines()[0])
        )
        sys.stderr.flush()
        os._exit(1)


def write_stacks_on_signal():
    path = os.environ.get("LONGBOAT_STACKS_FILE")
    if path:
        import _signal
        import faulthandler

        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if hasattr(os, "set_inheritable"):
            os.set_inheritable(fd, False)
        faulthandler.register(_signal.SIGUSR1, file=fd, all_threads=True, chain=False)
        if not faulthandler.is_enabled():
            faulthandler.enable(all_threads=False)  # a crash in C logs the Python stack


def report_uncaught_exceptions():
    """Report an exception that ends this program before Python runs its exit handlers.

    Handlers that wait for the peers (JAX's shutdown barrier, MPI_Finalize) would hide it for minutes. It fails the rank
    if this is the rank's own program; otherwise the parent judges the exit code.
    """
    import _thread
    import time

    main_thread = _thread.get_ident()

    def report():
        sys.stderr.flush()
        mine = os.environ.get("LONGBOAT_RANK_PID") in (str(os.getpid()), "sh %d" % os.getppid())
        line = '{"exception":{"pid":%d,"t":%.6f,"fails_rank":%d}}\n' % (os.getpid(), time.time(), mine)
        fd = os.open(os.environ["LONGBOAT_REPORT_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, line.encode())
        os.close(fd)

    def excepthook(kind, value, traceback):
        sys.__excepthook__(kind, value, traceback)
        try:
            sys._getframe(1)  # noqa: SLF001 - a caller: the program continues
        except ValueError:
            if _thread.get_ident() == main_thread:
                try:
                    report()
                except Exception:
                    pass

    sys.excepthook = excepthook


def run_hidden_sitecustomize():
    """Run the sitecustomize that the interpreter would have run without our directory."""
    mine = sys.modules.pop("sitecustomize", None)
    kept = list(sys.path)
    try:
        sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != HERE]
        __import__("sitecustomize")
    except ImportError:
        if mine is not None:
            sys.modules["sitecustomize"] = mine
    finally:
        sys.path[:] = kept


def start():
    hooks = {}
    if "COORDINATOR_ADDRESS" in os.environ:
        hooks["jax._src.clusters"] = register_with_jax
    if "LONGBOAT_MPI_SIZE" in os.environ:
        hooks["mpi4py.MPI"] = check_mpi_size
    if hooks:
        sys.meta_path.insert(0, Hooks(hooks))
    sys.meta_path.append(Fallback)
    report_uncaught_exceptions()
    write_stacks_on_signal()


if "LONGBOAT_RUN_ID" in os.environ:
    try:
        start()
    except Exception:
        pass
run_hidden_sitecustomize()
