// Runs a grammar over bytes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/serve/constraint/grammar.h"

namespace millrace::serve {

/// All places in a grammar where a text may have arrived, as one number: what may follow depends on the number alone.
/// States and the ways between them are made when they are first needed. One thread at a time.
class GrammarMachine {
 public:
  using State = std::int32_t;
  static constexpr State kDead = -1;  ///< no text goes on from here

  explicit GrammarMachine(Grammar grammar);

  State start() const { return start_; }
  /// Returns the state behind one more byte. REQUIRES: `from` is not dead.
  State Next(State from, unsigned char byte);
  /// Returns whether a text may end here.
  bool Accepts(State state) const { return states_[static_cast<std::size_t>(state)].accepts; }
  /// Returns whether the limit of states is reached, so that no more are made. Then new ways lead to kDead.
  bool full() const { return states_.size() >= kMaxStates; }
  std::size_t states() const { return states_.size(); }
  static constexpr std::size_t kMaxStates = 60'000;
  static constexpr int kMaxDepth = 64;  ///< calls within each other; deeper ones are no way on

 private:
  /// A stack of the nodes at which calls go on. Equal stacks have equal numbers; 0 is the empty one.
  using Stack = std::int32_t;
  struct Frame {
    Stack below = 0;
    Grammar::NodeId next = 0;
    int depth = 0;
  };
  /// The node at which a byte is taken next, behind a stack of calls.
  using Place = std::pair<Grammar::NodeId, Stack>;
  struct StateData {
    std::vector<Place> places;
    bool accepts = false;
    std::unique_ptr<std::array<State, 256>> next;
  };

  Stack Push(Stack stack, Grammar::NodeId next);
  State Intern(std::vector<Place> arrived);
  /// Follows choices, calls and returns from `arrived` to where bytes are taken.
  StateData Close(std::vector<Place> arrived);

  const Grammar grammar_;
  std::vector<Frame> frames_{1};
  std::map<std::pair<Stack, Grammar::NodeId>, Stack> stacks_;
  std::vector<StateData> states_;
  std::map<std::pair<std::vector<Place>, bool>, State> known_;
  State start_ = kDead;
};

}  // namespace millrace::serve
