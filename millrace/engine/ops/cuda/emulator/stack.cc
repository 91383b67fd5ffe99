#include "millrace/engine/ops/cuda/emulator/stack.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(EMULATOR_WITH_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace millrace::engine::cuda::emulator {
namespace {

constexpr std::size_t kBytes = 256 << 10;

Stack *from = nullptr, *current = nullptr;  ///< of the last switch

}  // namespace

Stack::Stack() : has_begun_(true) {
#if defined(EMULATOR_WITH_TSAN)
  fiber_ = __tsan_get_current_fiber();
#endif
}

Stack::Stack(void (*run)()) : memory_(std::make_unique_for_overwrite<std::byte[]>(kBytes)), run_(run) {
  bottom_ = memory_.get();
  bytes_ = kBytes;
  getcontext(&context_);
  context_.uc_stack.ss_sp = memory_.get();
  context_.uc_stack.ss_size = kBytes;
  makecontext(&context_, &Stack::Begin, 0);
#if defined(EMULATOR_WITH_TSAN)
  fiber_ = __tsan_create_fiber(0);
#endif
}

Stack::~Stack() {
#if defined(EMULATOR_WITH_TSAN)
  if (memory_) __tsan_destroy_fiber(fiber_);
#endif
}

void Stack::Begin() {
  current->has_begun_ = true;
  current->Arrive();
  current->run_();
}

void Stack::SwitchTo(Stack& next) {
  Leave(next);
#if defined(__SANITIZE_ADDRESS__) || defined(EMULATOR_WITH_TSAN)
  swapcontext(&context_, &next.context_);
#else
  // The same without a system call.
  if (_setjmp(resume_) == 0) {
    if (next.has_begun_) _longjmp(next.resume_, 1);
    setcontext(&next.context_);
  }
#endif
  Arrive();
}

void Stack::Leave(Stack& next) {
  from = this;
  current = &next;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_, next.bottom_, next.bytes_);
#endif
#if defined(EMULATOR_WITH_TSAN)
  __tsan_switch_to_fiber(next.fiber_, __tsan_switch_to_fiber_no_sync);
#endif
}

void Stack::Arrive() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_, &from->bottom_, &from->bytes_);
#endif
}

void Moment::LeaveFor() {
#if defined(EMULATOR_WITH_TSAN)
  __tsan_release(this);
#endif
}

void Moment::ArriveFrom() {
#if defined(EMULATOR_WITH_TSAN)
  __tsan_acquire(this);
#endif
}

}  // namespace millrace::engine::cuda::emulator
