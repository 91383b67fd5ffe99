#include "millrace/data/formats/megatron.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

namespace millrace::data {
namespace {

constexpr std::string_view kBinMagic{"MMIDIDX\0\0", 9};
constexpr std::uint64_t kVersion = 1, kHeadBytes = 34;  // docs/formats/megatron.md
constexpr std::uint8_t kInt32 = 4, kUint16 = 8;
constexpr std::size_t kTableReadBytes = 8 * kMiB;  // one read of an .idx; a guess

DataObject TableOf(const DataObject& object) {
  return {.store = object.store, .info = *object.table, .url = TokenTableKey(object.url)};
}

struct Head {
  std::uint8_t type = 0;
  std::uint64_t sequences = 0, documents = 0;
};

Result<Head> ReadHead(const DataObject& table, object::Call call) {
  std::array<std::byte, kHeadBytes> bytes;
  bool fits = table.info.size >= kHeadBytes;
  if (fits) MR_TRY(ReadRange(table, 0, bytes, "reading", std::move(call)));
  const std::byte* at = bytes.data() + kBinMagic.size();
  if (!fits || AsText(bytes).substr(0, kBinMagic.size()) != kBinMagic || LoadLittle<std::uint64_t>(at) != kVersion) {
    return Fail(Code::kCorrupt, "{}: not a table of token ids as Megatron-LM writes it", table.url);
  }
  Head head{LoadLittle<std::uint8_t>(at + 8), LoadLittle<std::uint64_t>(at + 9), LoadLittle<std::uint64_t>(at + 17)};
  // Lengths, pointers and document starts; with several modalities, a byte for each sequence as well.
  std::uint64_t room = table.info.size - kHeadBytes;
  bool plausible = head.sequences <= room / 12 && head.documents >= 1 && head.documents <= room / 8;
  std::uint64_t arrays = plausible ? 12 * head.sequences + 8 * head.documents : 0;
  if (!plausible || (arrays != room && arrays + head.sequences != room)) {
    return Fail(Code::kCorrupt, "{}: {} bytes are not what {} sequences in {} documents take; the table is cut off",
                table.url, table.info.size, head.sequences, head.documents);
  }
  return head;
}

/// Reads one array of a table front to back, a window at a time.
template <class T>
class Column {
 public:
  Column(const DataObject& table, std::uint64_t offset, std::uint64_t count, object::Call call)
      : table_(table), offset_(offset), left_(count), call_(std::move(call)) {}

  /// Returns the next element. REQUIRES: there is one.
  Result<T> Next() {
    if (at_ == window_.size()) {
      std::uint64_t count = std::min<std::uint64_t>(left_, kTableReadBytes / sizeof(T));
      assert(count > 0);
      window_ = Buffer(count * sizeof(T));
      MR_TRY(ReadRange(table_, offset_, window_.span(), "reading", call_));
      offset_ += window_.size();
      left_ -= count;
      at_ = 0;
    }
    T value = LoadLittle<T>(window_.data() + at_);
    at_ += sizeof(T);
    return value;
  }

 private:
  const DataObject& table_;
  std::uint64_t offset_, left_;
  object::Call call_;
  Buffer window_;
  std::size_t at_ = 0;
};

}  // namespace

void AppendTokens(std::span<const tokenizer::TokenId> ids, int token_bytes, std::string& into) {
  if (token_bytes == 4) {
    into += AsText(std::as_bytes(ids));
    return;
  }
  std::size_t before = into.size();
  into.resize(before + 2 * ids.size());
  char* to = into.data() + before;
  for (tokenizer::TokenId id : ids) {
    assert(id >= 0 && id <= UINT16_MAX);
    auto narrow = static_cast<std::uint16_t>(id);
    std::memcpy(to, &narrow, 2);
    to += 2;
  }
}

Status ParseTokens(ByteSpan bytes, int token_bytes, std::size_t count, int vocab_size, std::string_view what,
                   std::vector<tokenizer::TokenId>& into) {
  count = std::min(count, bytes.size() / token_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* at = bytes.data() + i * token_bytes;
    tokenizer::TokenId id = token_bytes == 2 ? LoadLittle<std::uint16_t>(at) : LoadLittle<std::int32_t>(at);
    if (id < 0 || id >= vocab_size) {
      return Fail(Code::kCorrupt, "{}: token {} is not in the tokenizer's vocabulary of {}; was it made with another?",
                  what, id, vocab_size);
    }
    into.push_back(id);
  }
  return {};
}

void TokenTableWriter::AddDocument(std::uint32_t tokens) {
  lengths_.push_back(tokens);
  tokens_ += tokens;
  sequences_ += tokens > 0;
}

Status TokenTableWriter::Write(const std::function<Status(ByteSpan)>& sink) const {
  std::string bytes;
  bytes.reserve(kMiB + sizeof(std::uint64_t));
  bytes += kBinMagic;
  auto put = [&](auto value) -> Status {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    if (bytes.size() < kMiB) return {};
    MR_TRY(sink(AsBytes(bytes)));
    bytes.clear();
    return {};
  };
  MR_TRY(put(kVersion));
  MR_TRY(put(token_bytes_ == 2 ? kUint16 : kInt32));
  MR_TRY(put(sequences_));
  MR_TRY(put(std::uint64_t{lengths_.size() + 1}));
  for (std::uint32_t length : lengths_) {
    if (length > 0) MR_TRY(put(length));
  }
  std::uint64_t pointer = 0;
  for (std::uint32_t length : lengths_) {
    if (length > 0) MR_TRY(put(pointer));
    pointer += std::uint64_t{length} * token_bytes_;
  }
  std::uint64_t first_sequence = 0;
  MR_TRY(put(first_sequence));
  for (std::uint32_t length : lengths_) MR_TRY(put(first_sequence += length > 0));
  return bytes.empty() ? Status() : sink(AsBytes(bytes));
}

std::string TokenTableKey(std::string_view bin_key) {
  return std::string(bin_key.substr(0, bin_key.size() - std::string_view(".bin").size())) + ".idx";
}

Status OpenTokenFile(DataObject& object, object::ObjectInfo table, object::Call call) {
  object.table = std::make_shared<object::ObjectInfo>(std::move(table));
  Head head = MR_TRY(ReadHead(TableOf(object), std::move(call)));
  if (head.type != kUint16 && head.type != kInt32) {
    return Fail(Code::kUnsupported,
                "{}: its numbers are of Megatron's type {}; token ids of type 8 (uint16) and 4 (int32) can be read",
                object.url, head.type);
  }
  object.token_bytes = head.type == kUint16 ? 2 : 4;
  return {};
}

Result<RecordIndex> IndexTokenFile(const DataObject& object, object::Call call) {
  const DataObject table = TableOf(object);
  const Head head = MR_TRY(ReadHead(table, call));
  const std::uint64_t pointers_at = kHeadBytes + 4 * head.sequences, starts_at = pointers_at + 8 * head.sequences;
  Column<std::int32_t> lengths(table, kHeadBytes, head.sequences, call);
  Column<std::int64_t> pointers(table, pointers_at, head.sequences, call);
  Column<std::int64_t> starts(table, starts_at, head.documents, call);
  auto corrupt = [&](std::uint64_t document, std::string_view why) {
    return Fail(Code::kCorrupt, "{}: document {} {}", table.url, document, why);
  };

  RecordIndexBuilder builder;
  builder.SetTokenBytes(object.token_bytes);
  std::uint64_t end = 0;  // end of the last document, in the .bin
  if (MR_TRY(starts.Next()) != 0) return corrupt(0, "does not start with the first sequence");
  for (std::uint64_t document = 0, sequence = 0; document + 1 < head.documents; ++document) {
    std::int64_t next = MR_TRY(starts.Next());
    if (next < 0 || static_cast<std::uint64_t>(next) < sequence || static_cast<std::uint64_t>(next) > head.sequences) {
      return corrupt(document, "has sequences that the table lacks");
    }
    std::uint64_t first = end, bytes = 0;
    for (; sequence < static_cast<std::uint64_t>(next); ++sequence) {
      std::int32_t length = MR_TRY(lengths.Next());
      std::int64_t pointer = MR_TRY(pointers.Next());
      if (length < 0 || pointer < 0) return corrupt(document, "has a negative place");
      std::uint64_t here = static_cast<std::uint64_t>(pointer);
      std::uint64_t size = static_cast<std::uint64_t>(length) * object.token_bytes;
      if (bytes == 0) first = here;
      if (here < end || here != first + bytes) return corrupt(document, "is not stored in one piece behind the others");
      if (here > object.info.size || size > object.info.size - here)
        return corrupt(document, "is beyond the .bin's end");
      bytes += size;
    }
    if (bytes > kMaxRecordBytes) {
      builder.AddBroken(first, BrokenReason::kTooLong);
    } else if (bytes > 0) {
      builder.Add(first, bytes, static_cast<std::uint32_t>(bytes / object.token_bytes));
    }
    end = first + bytes;
  }
  return builder.Finish();
}

}  // namespace millrace::data
