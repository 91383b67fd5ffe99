// Grammars over bytes, which define the texts that are allowed.
#pragma once

#include <bitset>
#include <cstdint>
#include <utility>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::serve {

using ByteSet = std::bitset<256>;

/// A context-free grammar in the form of a graph. A text fits if there is a path along it from the start to the end of
/// the first rule. Rules may call each other, and themselves behind a byte.
class Grammar {
 public:
  using NodeId = std::int32_t;
  struct Node {
    enum class Kind : std::uint8_t {
      kByte,    ///< takes one of `bytes`, then goes on at `next`
      kChoice,  ///< goes on at `next` or at `other`, without a byte
      kCall,    ///< goes through `rule`, then on at `next`
      kReturn,  ///< the end of a rule
    };
    Kind kind = Kind::kReturn;
    NodeId next = 0, other = 0;
    std::int32_t rule = 0;
    ByteSet bytes = {};
  };

  const std::vector<Node>& nodes() const { return nodes_; }
  NodeId start(std::int32_t rule) const { return starts_[static_cast<std::size_t>(rule)]; }
  /// Counts a step of building. Whoever builds calls it for each part, also for one that adds no node.
  /// Errors: kResourceExhausted if the grammar has more than kMaxNodes, or took more than kMaxSteps.
  Status Check();
  static constexpr std::size_t kMaxNodes = 100'000;
  static constexpr std::size_t kMaxSteps = 4 * kMaxNodes;

  // To build one: each call returns the node in front of what it adds, which goes on at `next`. So grammars are made
  // from their end.

  /// Returns the number of a new rule; SetRule says what it is.
  std::int32_t NewRule();
  void SetRule(std::int32_t rule, NodeId start) { starts_[static_cast<std::size_t>(rule)] = start; }
  NodeId End();
  NodeId Byte(const ByteSet& bytes, NodeId next);
  NodeId Text(std::string_view text, NodeId next);
  NodeId Call(std::int32_t rule, NodeId next);
  NodeId Choice(NodeId one, NodeId other);
  /// `choices` is not empty.
  NodeId Choice(const std::vector<NodeId>& choices);
  /// A loop is a choice that is made before what it repeats: the node goes on at `next`, or at what SetOther() says.
  NodeId Loop(NodeId next);
  void SetOther(NodeId loop, NodeId other) { nodes_[static_cast<std::size_t>(loop)].other = other; }
  /// One character of UTF-8, of sorted ranges [first, last] of code points that do not touch.
  NodeId Character(const std::vector<std::pair<char32_t, char32_t>>& ranges, NodeId next);

 private:
  NodeId Add(Node node);
  NodeId Range(char32_t first, char32_t last, NodeId next);

  std::vector<Node> nodes_;
  std::vector<NodeId> starts_;
  std::size_t steps_ = 0;
};

}  // namespace millrace::serve
