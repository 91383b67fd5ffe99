// Stacks that one thread of the CPU runs in turns, with what sanitizers must know of them.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <memory>

namespace millrace::engine::cuda::emulator {

/// One thread makes and switches all stacks.
class Stack {
 public:
  /// The stack that is in use.
  Stack();
  /// A new one, of 256 KiB. `run` begins when it is first switched to, and must not return.
  explicit Stack(void (*run)());
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  ~Stack();

  /// Goes on with `next`. Returns when another stack switches to this one. REQUIRES: this one is in use.
  /// To ThreadSanitizer, stacks are threads; a switch orders nothing that they do.
  void SwitchTo(Stack& next);

 private:
  static void Begin();
  void Leave(Stack& next);
  void Arrive();

  std::unique_ptr<std::byte[]> memory_;  ///< null: the CPU's own
  ucontext_t context_{};                 ///< where it begins; with sanitizers, where it goes on
  jmp_buf resume_{};                     ///< where it goes on
  bool has_begun_ = false;
  void (*run_)() = nullptr;
  const void* bottom_ = nullptr;  ///< of the stack's memory, for AddressSanitizer
  std::size_t bytes_ = 0;
  [[maybe_unused]] void* fake_ = nullptr;   ///< AddressSanitizer's stack for locals whose use after a return it finds
  [[maybe_unused]] void* fiber_ = nullptr;  ///< ThreadSanitizer's name of the stack
};

/// A moment that stacks come from and go on after. To ThreadSanitizer, what a stack did before LeaveFor() happens
/// before what another does after ArriveFrom().
class Moment {
 public:
  void LeaveFor();
  void ArriveFrom();
};

}  // namespace millrace::engine::cuda::emulator
