#include "millrace/serve/constraint/grammar.h"

#include <algorithm>
#include <array>

#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::serve {
namespace {

ByteSet Bytes(int first, int last) {
  ByteSet bytes;
  for (int byte = first; byte <= last; ++byte) bytes.set(static_cast<std::size_t>(byte));
  return bytes;
}

}  // namespace

Status Grammar::Check() {
  if (++steps_ <= kMaxSteps && nodes_.size() <= kMaxNodes) return {};
  return Fail(Code::kResourceExhausted, "the constraint is too large (more than {} parts)", kMaxNodes);
}

std::int32_t Grammar::NewRule() {
  starts_.push_back(0);
  return static_cast<std::int32_t>(starts_.size()) - 1;
}

Grammar::NodeId Grammar::Add(Node node) {
  nodes_.push_back(node);
  return static_cast<NodeId>(nodes_.size()) - 1;
}

Grammar::NodeId Grammar::End() { return Add({.kind = Node::Kind::kReturn}); }

Grammar::NodeId Grammar::Byte(const ByteSet& bytes, NodeId next) {
  return Add({.kind = Node::Kind::kByte, .next = next, .bytes = bytes});
}

Grammar::NodeId Grammar::Text(std::string_view text, NodeId next) {
  for (auto byte = text.rbegin(); byte != text.rend(); ++byte) {
    const auto value = static_cast<unsigned char>(*byte);
    next = Byte(Bytes(value, value), next);
  }
  return next;
}

Grammar::NodeId Grammar::Call(std::int32_t rule, NodeId next) {
  return Add({.kind = Node::Kind::kCall, .next = next, .rule = rule});
}

Grammar::NodeId Grammar::Choice(NodeId one, NodeId other) {
  return Add({.kind = Node::Kind::kChoice, .next = one, .other = other});
}

Grammar::NodeId Grammar::Choice(const std::vector<NodeId>& choices) {
  NodeId all = choices.back();
  for (std::size_t i = choices.size() - 1; i-- > 0;) all = Choice(choices[i], all);
  return all;
}

Grammar::NodeId Grammar::Loop(NodeId next) { return Choice(next, next); }

/// Code points whose UTF-8 has one length. Divides them where the bytes behind the first difference do not go through
/// all of their values.
Grammar::NodeId Grammar::Range(char32_t first, char32_t last, NodeId next) {
  std::array<char, 4> low{}, high{};
  const int length = tokenizer::EncodeUtf8(first, low.data());
  tokenizer::EncodeUtf8(last, high.data());
  const auto byte = [](char c) { return static_cast<unsigned char>(c); };
  int same = 0;
  while (same < length - 1 && low[same] == high[same]) ++same;
  // The bytes behind `same` must go through all of their values. Otherwise the range is divided.
  const char32_t behind = (char32_t{1} << (6 * (length - 1 - same))) - 1;
  if ((first & behind) != 0 && same < length - 1) {
    return Choice(Range(first, first | behind, next), Range((first | behind) + 1, last, next));
  }
  if ((last & behind) != behind && same < length - 1) {
    return Choice(Range(first, (last & ~behind) - 1, next), Range(last & ~behind, last, next));
  }
  for (int i = length - 1; i > same; --i) next = Byte(Bytes(0x80, 0xBF), next);
  next = Byte(Bytes(byte(low[same]), byte(high[same])), next);
  for (int i = same - 1; i >= 0; --i) next = Byte(Bytes(byte(low[i]), byte(low[i])), next);
  return next;
}

Grammar::NodeId Grammar::Character(const std::vector<std::pair<char32_t, char32_t>>& ranges, NodeId next) {
  constexpr std::array<std::pair<char32_t, char32_t>, 5> kLengths = {
      {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}}};
  std::vector<NodeId> choices;
  ByteSet ascii;
  for (const auto& [first, last] : ranges) {
    for (const auto& [least, most] : kLengths) {
      const char32_t begin = std::max(first, least), end = std::min(last, most);
      if (begin > end) continue;
      if (least == 0) {
        ascii |= Bytes(static_cast<int>(begin), static_cast<int>(end));
      } else {
        choices.push_back(Range(begin, end, next));
      }
    }
  }
  if (ascii.any() || choices.empty()) choices.push_back(Byte(ascii, next));
  return Choice(choices);
}

}  // namespace millrace::serve
