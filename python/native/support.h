// Helpers of all bindings: errors as exceptions, waits without the interpreter's lock, and objects that a forked child
// must not touch.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <stop_token>
#include <utility>

#include "millrace/base/result.h"

namespace millrace::python {

namespace py = pybind11;

/// Carries an Error through C++ frames of this extension to the translator, which raises the class that
/// millrace/errors.py has for its code.
struct Raised {
  Error error;
};

template <class T>
T Unwrap(Result<T> result) {
  if (!result) throw Raised{std::move(result).error()};
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

/// Registers the translator. Called once, when the module is initialized.
void TranslateErrors();

/// Releases the interpreter's lock for its lifetime, and takes the lock again at its end. If the interpreter has ended
/// by then, stops the thread there forever: before version 3.14, CPython ends daemon threads that take the lock by
/// unwinding their stacks, and C++ ends the process where that meets a destructor. REQUIRES: the thread has the lock.
class InterpreterUnlocked {
 public:
  InterpreterUnlocked() : state_(PyEval_SaveThread()) {}
  ~InterpreterUnlocked();
  InterpreterUnlocked(const InterpreterUnlocked&) = delete;
  InterpreterUnlocked& operator=(const InterpreterUnlocked&) = delete;

 private:
  PyThreadState* const state_;
};

/// Takes the interpreter's lock for its lifetime, on a thread that may be one of C++. If the interpreter has ended,
/// stops the thread as InterpreterUnlocked does.
class InterpreterLocked {
 public:
  InterpreterLocked();
  ~InterpreterLocked() { PyGILState_Release(state_); }
  InterpreterLocked(const InterpreterLocked&) = delete;
  InterpreterLocked& operator=(const InterpreterLocked&) = delete;

 private:
  PyGILState_STATE state_;
};

/// Runs `work` without the interpreter's lock. In the main thread, Ctrl-C fires the stop token of `work`, and raises
/// KeyboardInterrupt in place of the result. `work` must not use Python.
void RunInterruptibly(const std::function<void(std::stop_token)>& work);

template <class T>
T Interruptible(const std::function<Result<T>(std::stop_token)>& work) {
  std::optional<Result<T>> outcome;
  RunInterruptibly([&](std::stop_token stop) { outcome.emplace(work(std::move(stop))); });
  return Unwrap(*std::move(outcome));
}

/// Owns an object with threads. In a forked child these threads do not exist, and the object's destructor would wait
/// for them. So a child never destroys the object, and using it there is an error.
template <class T>
class ProcessBound {
 public:
  ProcessBound() = default;
  explicit ProcessBound(std::shared_ptr<T> object) : object_(std::move(object)) {}
  ProcessBound(const ProcessBound&) = default;
  ProcessBound(ProcessBound&&) = default;
  ProcessBound& operator=(const ProcessBound&) = default;
  ProcessBound& operator=(ProcessBound&&) = default;
  ~ProcessBound() {
    if (object_ && getpid() != process_) new std::shared_ptr<T>(std::move(object_));  // leaked on purpose, see above
  }

  T& operator*() const { return *Get(); }
  T* operator->() const { return Get(); }
  const std::shared_ptr<T>& shared() const {
    (void)Get();
    return object_;
  }

 private:
  T* Get() const {
    if (!object_) throw py::value_error("it is closed");
    if (getpid() != process_) {
      throw std::runtime_error("it was opened before this process was forked; open it again in the child");
    }
    return object_.get();
  }

  std::shared_ptr<T> object_;
  pid_t process_ = getpid();
};

}  // namespace millrace::python
