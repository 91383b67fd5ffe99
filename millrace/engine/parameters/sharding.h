// The sharding of a model's parameters: how ranks divide their memory.
#pragma once

namespace millrace::engine {

/// The ranks that would hold the same parameters, gradients and optimizer state, and which of these they divide
/// (ZeRO: Rajbhandari et al. 2019; with stage 3, FSDP: Zhao et al. 2023). A value type. One rank divides nothing.
struct Sharding {
  int ranks = 1, rank = 0;
  int zero = 0;  ///< 0: nothing; 1: the optimizer's state; 2: gradients, too; 3: parameters, too

  /// Returns whether a rank updates and saves a part of each group only.
  bool divides_state() const { return ranks > 1 && zero >= 1; }
  /// Returns whether gradients of a whole group exist only while a backward pass adds to them.
  bool divides_gradients() const { return ranks > 1 && zero >= 2; }
  /// Returns whether parameters of a whole group exist only while a pass uses them.
  bool divides_values() const { return ranks > 1 && zero >= 3; }
  /// Returns the number of equal parts that each group has, and which one is this rank's.
  int parts() const { return divides_state() ? ranks : 1; }
  int part() const { return divides_state() ? rank : 0; }
};

}  // namespace millrace::engine
