#include "millrace/data/formats/json_array.h"

#include <algorithm>
#include <utility>

#include "millrace/data/compression/object_beginning.h"

namespace millrace::data {
namespace {

/// The most fields that an error lists, and bytes of a name. A guess: keeps the message on a few lines.
constexpr std::size_t kMaxNamedFields = 16, kMaxFieldName = 256;

/// Finds the elements of an array. Understands only strings, brackets and commas.
class ArrayScanner {
 public:
  /// Starts at the start of the data, or at an element at `offset`. `field` must outlive the scanner.
  ArrayScanner(std::string_view field, std::uint64_t offset) : field_(field), record_depth_(field.empty() ? 1 : 2) {
    if (offset == 0) return;
    nesting_ = field.empty() ? "]" : "}]";
    position_ = ArrayPosition::kWithin;
    began_ = true;
    offset_ = offset;
  }

  struct TakenBytes {
    std::size_t bytes = 0;
    bool at_cut = false;  ///< the bytes end with a comma between two elements
  };
  /// Takes all of `bytes`, or the bytes up to the first cut at or behind `at_least`. A cut is behind a comma between
  /// two elements. Leaves a comma that is the last byte for the next call, because it is a cut only if an element
  /// follows. With `at_end` nothing follows, so takes such a comma. If `edit` points to the memory of `bytes`, turns
  /// them into lines.
  Result<TakenBytes> Take(std::string_view bytes, std::size_t at_least, bool at_end, char* edit) {
    std::size_t i = 0;
    while (i < bytes.size()) {
      if (in_string_) {
        i = TakeString(bytes, i, edit);
        continue;
      }
      const char c = bytes[i];
      const bool may_cut = c == ',' && position_ == ArrayPosition::kWithin && nesting_.size() == record_depth_;
      if (may_cut && i + 1 == bytes.size() && !at_end) break;
      MR_TRY(TakeOne(c, offset_ + i));
      if (edit && !element_) edit[i] = '\n';
      if (edit && element_ && (c == '\n' || c == '\r')) edit[i] = ' ';
      ++i;
      if (may_cut && i >= at_least && i < bytes.size()) {
        offset_ += i;
        return TakenBytes{i, true};
      }
    }
    offset_ += i;
    return TakenBytes{i, false};
  }

  /// Checks that the data are whole. Call it at their end.
  Status Finish() const {
    if (position_ == ArrayPosition::kBehind && nesting_.empty()) return {};
    if (position_ != ArrayPosition::kAhead) return Corrupt(offset_, "the data end inside of the array of records");
    if (!field_.empty() && nesting_.empty() && !fields_.empty()) {
      return Fail(Code::kNotFound,
                  "the object has no field \"{}\"; it has {}; name one of them in the format, json:FIELD", field_,
                  fields_);
    }
    return Corrupt(offset_, "the data end before an array of records begins");
  }

  bool in_element() const { return element_; }

 private:
  enum class ArrayPosition { kAhead, kWithin, kBehind };

  template <class... Args>
  static std::unexpected<Error> Corrupt(std::uint64_t at, fmt::format_string<Args...> format, Args&&... args) {
    return Fail(Code::kCorrupt, "at byte {} of the data: {}", at, fmt::format(format, std::forward<Args>(args)...));
  }

  /// Returns the position behind the string's end, or the end of `bytes`.
  std::size_t TakeString(std::string_view bytes, std::size_t i, char* edit) {
    const bool names = NamesField();
    for (; i < bytes.size() && in_string_; ++i) {
      const char c = bytes[i];
      if (names && c != '"' && key_.size() < kMaxFieldName) key_ += c;
      if (edit && !element_) edit[i] = '\n';
      // JSON does not allow a newline in a string. Another invalid byte keeps the record on one line, and broken.
      if (edit && element_ && c == '\n') edit[i] = '\x01';
      if (std::exchange(escaped_, false)) continue;
      escaped_ = c == '\\';
      in_string_ = c != '"';
    }
    return i;
  }

  /// Returns true if strings are names of fields in front of the array.
  bool NamesField() const { return position_ == ArrayPosition::kAhead && nesting_.size() == 1; }

  Status TakeOne(char c, std::uint64_t at) {
    if (kJsonBlank.contains(c) || (at < kByteOrderMark.size() && kByteOrderMark[at] == c)) return {};
    if (chosen_ && c != '[') return Corrupt(at, "the field \"{}\" holds no array", field_);
    if (nesting_.empty()) MR_TRY(CheckOutermost(c, at));
    if (NamesField()) TakeHeader(c);
    const bool between = position_ == ArrayPosition::kWithin && nesting_.size() == record_depth_;
    switch (c) {
      case '[':
      case '{':
        if (nesting_.size() >= kMaxJsonNesting) return Corrupt(at, "more than {} brackets are open", kMaxJsonNesting);
        if (between) BeginElement(at);
        nesting_ += c == '[' ? ']' : '}';
        if (position_ == ArrayPosition::kAhead && nesting_.size() == record_depth_ && (field_.empty() || chosen_)) {
          position_ = ArrayPosition::kWithin;
          chosen_ = false;
        }
        return {};
      case ']':
      case '}':
        return Close(c, at, between);
      case ',':
        if (!between) return {};
        if (!element_) return Corrupt(at, "a comma where an element should be");
        element_ = false;
        after_comma_ = true;
        return {};
      case '"':
        in_string_ = true;
        [[fallthrough]];
      default:
        if (between) BeginElement(at);
        return {};
    }
  }

  void BeginElement(std::uint64_t at) {
    if (!std::exchange(element_, true)) element_at_ = at;
    after_comma_ = false;
  }

  Status CheckOutermost(char c, std::uint64_t at) {
    if (std::exchange(began_, true)) return Corrupt(at, "something follows the end of the JSON data");
    if (c == (field_.empty() ? '[' : '{')) return {};
    if (c == '{') {
      return Corrupt(at,
                     "an object, not an array of records; if a field of it is one, name that: format json:FIELD; if it "
                     "is a record itself: format objects");
    }
    return Corrupt(at, "no JSON {} begins here", field_.empty() ? "array" : "object");
  }

  void TakeHeader(char c) {
    if (c == '"') key_.clear();
    if (c != ':') return;
    chosen_ = key_ == field_;
    if (std::ranges::count(fields_, ',') + 1 >= static_cast<std::ptrdiff_t>(kMaxNamedFields)) return;
    fields_ += fields_.empty() ? key_ : fmt::format(", {}", key_);
  }

  Status Close(char c, std::uint64_t at, bool between) {
    if (nesting_.empty() || nesting_.back() != c) {
      if (position_ != ArrayPosition::kWithin) return Corrupt(at, "'{}' closes nothing", c);
      return Corrupt(at, "'{}' where '{}' should be, in the element from byte {} on", c, nesting_.back(), element_at_);
    }
    nesting_.pop_back();
    if (!between) return {};
    if (after_comma_) return Corrupt(at, "the array ends where an element should be, behind a comma");
    element_ = false;
    position_ = ArrayPosition::kBehind;
    return {};
  }

  const std::string_view field_;
  const std::size_t record_depth_;  ///< open brackets between two elements
  std::string nesting_;             ///< the closing bracket of each open bracket
  ArrayPosition position_ = ArrayPosition::kAhead;
  std::uint64_t offset_ = 0;  ///< of the first byte that was not taken, in the data
  bool began_ = false;        ///< the outermost bracket was taken
  bool in_string_ = false, escaped_ = false;
  bool element_ = false, after_comma_ = false;
  std::uint64_t element_at_ = 0;
  std::string key_;      ///< the current field of the object around the array
  std::string fields_;   ///< all names of its fields so far
  bool chosen_ = false;  ///< the next value is that of field_
};

class ArraySplitter final : public RecordSplitter {
 public:
  explicit ArraySplitter(std::string_view field) : scanner_(field, 0) {}

  Result<std::optional<std::size_t>> Find(std::string_view bytes, std::size_t at_least, bool at_end) override {
    const std::size_t least = at_least > taken_ ? at_least - taken_ : 1;
    const auto taken = MR_TRY(scanner_.Take(bytes.substr(taken_), least, at_end, nullptr));
    taken_ += taken.bytes;
    if (taken.at_cut) return taken_;
    if (!at_end) return std::nullopt;
    MR_TRY(scanner_.Finish());
    return bytes.size();
  }
  /// The scanner continues, because records start where Find ended.
  void Restart(std::uint64_t) override { taken_ = 0; }

 private:
  ArrayScanner scanner_;
  std::size_t taken_ = 0;
};

class JsonArray final : public Syntax {
 public:
  explicit JsonArray(std::string field) : field_(std::move(field)) {}

  std::unique_ptr<RecordSplitter> NewSplitter() const override { return std::make_unique<ArraySplitter>(field_); }

  Result<Buffer> ToLines(Buffer records, std::uint64_t offset) const override {
    ArrayScanner scanner(field_, offset);
    MR_TRY(scanner.Take(AsText(records), records.size() + 1, true, reinterpret_cast<char*>(records.data())));
    if (scanner.in_element()) return Fail(Code::kCorrupt, "records that do not end with an element");
    return records;
  }

 private:
  const std::string field_;
};

/// Where the JSON object at the start of `text` ends: on its first line, on a later line, or behind the text.
enum class ObjectExtent { kOneLine, kSeveralLines, kBeyondText };
ObjectExtent ExtentOfObject(std::string_view text) {
  std::size_t depth = 0;
  bool in_string = false, escaped = false, over_lines = false;
  for (char c : text) {
    if (in_string) {
      if (std::exchange(escaped, false)) continue;
      escaped = c == '\\';
      in_string = c != '"';
      continue;
    }
    in_string = c == '"';
    depth += c == '{' || c == '[';
    if ((c == '}' || c == ']') && --depth == 0)
      return over_lines ? ObjectExtent::kSeveralLines : ObjectExtent::kOneLine;
    over_lines |= c == '\n';
  }
  return over_lines ? ObjectExtent::kBeyondText : ObjectExtent::kOneLine;
}

}  // namespace

std::unique_ptr<const Syntax> MakeJsonArraySyntax(std::string field) {
  return std::make_unique<JsonArray>(std::move(field));
}

Result<RecordLayout> LookAtJson(const DataObject& object, Compression compression, object::Call call) {
  const Buffer bytes = MR_TRY(ReadBeginning(object, compression, 16 * kKiB, std::move(call)));
  std::string_view text = AsText(bytes);
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  text.remove_prefix(std::min(text.find_first_not_of(kJsonBlank), text.size()));
  if (text.starts_with('[')) return RecordLayout::kJson;
  const ObjectExtent extent = text.starts_with('{') ? ExtentOfObject(text) : ObjectExtent::kOneLine;
  if (extent == ObjectExtent::kOneLine) return RecordLayout::kJsonLines;
  if (extent == ObjectExtent::kSeveralLines) return RecordLayout::kObjects;
  return Fail(Code::kUnsupported,
              "{} begins with a long object of several lines. If one of its fields is an array of records, name it "
              "(format json:FIELD);\n"
              "if it is a record itself, say so (format objects); if it is no data, choose the others by a glob",
              object.url);
}

}  // namespace millrace::data
