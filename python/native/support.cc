#include "python/native/support.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace millrace::python {
namespace {

bool InMainThread() {
  py::object threading = py::module_::import("threading");
  return threading.attr("current_thread")().is(threading.attr("main_thread")());
}

void Raise(const Error& error) {
  py::object type = py::module_::import("millrace.errors").attr("of_code")(std::string(CodeName(error.code())));
  PyErr_SetObject(type.ptr(), type(error.ToString()).ptr());
}

/// Takes the interpreter's lock by `take`, or stops the thread if the interpreter has ended.
template <class Take>
void TakeLockOrStop(Take take) {
  try {
    take();
  } catch (...) {
    // Only the unwinding by CPython comes here. The handler must not end: the unwinding would go on, or the C library
    // would end the process.
    while (true) pause();
  }
}

}  // namespace

InterpreterUnlocked::~InterpreterUnlocked() {
  TakeLockOrStop([this] { PyEval_RestoreThread(state_); });
}

InterpreterLocked::InterpreterLocked() {
  TakeLockOrStop([this] { state_ = PyGILState_Ensure(); });
}

void TranslateErrors() {
  py::register_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const Raised& one) {
      Raise(one.error);
    }
  });
}

void RunInterruptibly(const std::function<void(std::stop_token)>& work) {
  if (!InMainThread()) {
    const InterpreterUnlocked release;
    work({});
    return;
  }
  // Python's signal handlers only set a flag, which the main thread must check. So another thread does the work.
  constexpr auto kLook = std::chrono::milliseconds(50);  // a guess: Ctrl-C ends the wait at once for a person
  std::mutex mutex;
  std::condition_variable finished;
  bool done = false, interrupted = false;
  {
    const InterpreterUnlocked release;
    std::jthread worker([&](std::stop_token stop) {
      work(std::move(stop));
      std::lock_guard lock(mutex);
      done = true;
      finished.notify_one();
    });
    std::unique_lock lock(mutex);
    while (!finished.wait_for(lock, kLook, [&] { return done; })) {
      if (interrupted) continue;
      lock.unlock();
      {
        const InterpreterLocked acquire;
        interrupted = PyErr_CheckSignals() != 0;
      }
      if (interrupted) worker.request_stop();
      lock.lock();
    }
  }
  if (interrupted) throw py::error_already_set();
}

}  // namespace millrace::python
