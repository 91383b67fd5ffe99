// Puts off the gradients of weight matrices, so that a pipeline can compute them while it would otherwise wait.
#pragma once

#include <functional>
#include <vector>

namespace millrace::engine::ops {

/// The work that a backward pass has put off. It keeps what it needs: for a linear layer, its input and the gradient of
/// its output.
class DeferredWork {
 public:
  bool empty() const { return work_.empty(); }
  /// Does the work, in the order in which it was put off, and frees it.
  void RunAll();

 private:
  friend void RunOrDefer(std::function<void()> work);
  std::vector<std::function<void()>> work_;
};

/// A scope in which RunOrDefer() on this thread puts work off. A backward pass runs on the thread that started it.
class DeferScope {
 public:
  explicit DeferScope(DeferredWork& into);
  ~DeferScope();
  DeferScope(const DeferScope&) = delete;
  DeferScope& operator=(const DeferScope&) = delete;

 private:
  DeferredWork* const outer_;
};

/// Does `work` now or, in a DeferScope, later. For what no other gradient depends on: an op's backward adds to the
/// gradient of a weight with it, and reports that.
void RunOrDefer(std::function<void()> work);
/// Returns whether RunOrDefer() on this thread puts work off.
bool IsDeferring();

}  // namespace millrace::engine::ops
