// Runs a grammar over bytes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/serve/constraint/grammar.h"

namespace millrace::serve {

/// All places in a grammar where a text may have arrived, as one number: what may follow depends on the number alone.
/// States and the ways between them are made when they are first needed, and dropped when they take too much memory
/// (Cox 2010, lazy automata). One thread at a time.
class GrammarMachine {
 public:
  using State = std::int32_t;
  static constexpr State kDead = -1;  ///< no text goes on from here

  /// A stack of the nodes at which calls go on. Equal stacks have equal numbers; 0 is the empty one.
  using Stack = std::int32_t;
  /// The node at which a byte is taken next, behind a stack of calls.
  using Place = std::pair<Grammar::NodeId, Stack>;
  /// The meaning of a state. It outlives the number of the state.
  struct Arrival {
    std::vector<Place> places;  ///< in order
    bool accepts = false;       ///< whether a text may end here
    std::size_t cost = 0;       ///< nodes that were visited to find the places
  };

  explicit GrammarMachine(Grammar grammar);

  /// Returns where every text begins; null if the grammar is too large for that.
  const std::shared_ptr<const Arrival>& start() const { return start_; }
  /// Returns the state of an arrival of this machine; kDead for null.
  State Number(const std::shared_ptr<const Arrival>& arrival);
  /// Returns the state behind one more byte. REQUIRES: `from` is not dead.
  State Next(State from, unsigned char byte);
  /// Returns what the state stands for; null for kDead.
  std::shared_ptr<const Arrival> ArrivalOf(State state) const {
    return state == kDead ? nullptr : states_[static_cast<std::size_t>(state)].arrival;
  }
  bool Accepts(State state) const { return states_[static_cast<std::size_t>(state)].arrival->accepts; }

  /// Drops all states if they take more than kMaxBytes: their numbers mean nothing then. Returns generation().
  std::uint32_t Trim();
  std::uint32_t generation() const { return generation_; }
  std::size_t bytes() const { return bytes_; }
  /// Begins to count the work of Next() anew.
  void BeginRound();
  /// Returns the work of Next() in this round, in nodes. Each way counts once a round as if it were new, so that the
  /// count does not depend on what was asked before.
  std::int64_t work() const { return work_; }
  std::size_t stacks() const { return frames_.size(); }

  static constexpr std::size_t kMaxBytes = std::size_t{32} << 20;
  static constexpr std::size_t kMaxStacks = 200'000;  ///< they live as long as the machine; more are no way on
  static constexpr int kMaxDepth = 64;                ///< calls within each other; deeper ones are no way on
  static constexpr std::size_t kMaxVisits = 100'000;  ///< nodes and stacks behind one byte; more are no way on

 private:
  struct Frame {
    Stack below = 0;
    Grammar::NodeId next = 0;
    int depth = 0;
  };
  struct StateData {
    std::shared_ptr<const Arrival> arrival;
    std::unique_ptr<std::array<State, 256>> next = {};
    ByteSet counted = {};  ///< ways that count already in the round `counted_in`
    std::uint32_t counted_in = 0;
  };

  /// Returns -1 if there are too many.
  Stack Push(Stack stack, Grammar::NodeId next);
  /// Returns whether the place was not visited since the last call of BeginVisits().
  bool Visit(const Place& place);
  void BeginVisits();
  /// Follows choices, calls and returns from `arrived` to where bytes are taken. Null if there is no such place.
  std::shared_ptr<const Arrival> Close(std::vector<Place> arrived);
  void CountWork(StateData& from, unsigned char byte, State to);

  const Grammar grammar_;
  std::vector<Frame> frames_{1};
  std::map<std::pair<Stack, Grammar::NodeId>, Stack> stacks_;
  std::shared_ptr<const Arrival> start_;
  std::vector<StateData> states_;
  std::unordered_multimap<std::size_t, State> known_;  ///< by the hash of their places
  std::size_t bytes_ = 0;                              ///< of states_ and known_
  std::uint32_t generation_ = 0, round_ = 0;
  std::int64_t work_ = 0;
  std::vector<std::uint32_t> visited_;  ///< by node, with an empty stack: the last visits_ in which it was visited
  std::unordered_map<std::uint64_t, std::uint32_t> visited_behind_;  ///< the same, by node and stack
  std::uint32_t visits_ = 0;
};

}  // namespace millrace::serve
