#include "millrace/engine/ops/common/deferred_work.h"

#include <utility>

namespace millrace::engine::ops {
namespace {

thread_local DeferredWork* deferring_into = nullptr;

}  // namespace

void DeferredWork::RunAll() {
  for (std::function<void()>& work : std::exchange(work_, {})) std::exchange(work, nullptr)();
}

DeferScope::DeferScope(DeferredWork& into) : outer_(std::exchange(deferring_into, &into)) {}
DeferScope::~DeferScope() { deferring_into = outer_; }

bool IsDeferring() { return deferring_into != nullptr; }

void RunOrDefer(std::function<void()> work) {
  if (!IsDeferring()) {
    work();
  } else {
    deferring_into->work_.push_back(std::move(work));
  }
}

}  // namespace millrace::engine::ops
