#include "millrace/data/formats/json_objects.h"

#include <string>
#include <utility>

namespace millrace::data {
namespace {

/// Finds the ends of objects, byte by byte. Understands only strings and brackets.
class ObjectScanner {
 public:
  explicit ObjectScanner(std::uint64_t offset) : offset_(offset) {}

  /// Takes the next byte. ended() then tells whether the byte ended an object.
  Status Take(char c) {
    const std::uint64_t at = offset_++;
    ended_ = false;
    if (in_string_) {
      if (std::exchange(escaped_, false)) return {};
      escaped_ = c == '\\';
      in_string_ = c != '"';
      return {};
    }
    if (nesting_.empty() && c != '{') {
      if (kJsonBlank.contains(c) || (at < kByteOrderMark.size() && kByteOrderMark[at] == c)) return {};
      return Fail(Code::kCorrupt, "at byte {} of the data: '{}' where a JSON object should begin", at, c);
    }
    in_string_ = c == '"';
    if (c == '{' || c == '[') {
      if (nesting_.size() >= kMaxJsonNesting) {
        return Fail(Code::kCorrupt, "at byte {} of the data: more than {} brackets are open", at, kMaxJsonNesting);
      }
      nesting_ += c == '{' ? '}' : ']';
    } else if (c == '}' || c == ']') {
      if (nesting_.back() != c) {
        return Fail(Code::kCorrupt, "at byte {} of the data: '{}' where '{}' should be", at, c, nesting_.back());
      }
      nesting_.pop_back();
      ended_ = nesting_.empty();
    }
    return {};
  }

  bool inside() const { return !nesting_.empty(); }
  bool ended() const { return ended_; }

 private:
  std::uint64_t offset_;
  std::string nesting_;  ///< the closing bracket of each open bracket
  bool in_string_ = false, escaped_ = false, ended_ = false;
};

class ObjectSplitter final : public RecordSplitter {
 public:
  Result<std::optional<std::size_t>> Find(std::string_view bytes, std::size_t at_least, bool at_end) override {
    while (taken_ < bytes.size()) {
      MR_TRY(scanner_.Take(bytes[taken_++]));
      if (scanner_.ended() && taken_ >= at_least) return taken_;
    }
    if (!at_end) return std::nullopt;
    if (scanner_.inside()) return Fail(Code::kCorrupt, "the data end inside of a JSON object");
    return bytes.size();
  }
  void Restart(std::uint64_t offset) override {
    taken_ = 0;
    scanner_ = ObjectScanner(offset);
  }

 private:
  ObjectScanner scanner_{0};
  std::size_t taken_ = 0;
};

class JsonObjects final : public Syntax {
 public:
  std::unique_ptr<RecordSplitter> NewSplitter() const override { return std::make_unique<ObjectSplitter>(); }

  Result<Buffer> ToLines(Buffer records, std::uint64_t offset) const override {
    ObjectScanner scanner(offset);
    std::string lines;
    lines.reserve(records.size() + 1);
    for (char c : AsText(records)) {
      MR_TRY(scanner.Take(c));
      if (scanner.inside() || scanner.ended()) lines += c == '\n' || c == '\r' ? ' ' : c;
      if (scanner.ended()) lines += '\n';
    }
    if (scanner.inside()) return Fail(Code::kCorrupt, "records that do not end with an object");
    return ToBuffer(lines);
  }
};

}  // namespace

std::unique_ptr<const Syntax> MakeJsonObjectsSyntax() { return std::make_unique<JsonObjects>(); }

}  // namespace millrace::data
