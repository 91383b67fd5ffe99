#include "millrace/data/records/record_index.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <numeric>

#include "millrace/base/hash/crc.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/json.h"

namespace millrace::data {
namespace {

constexpr std::string_view kIndexMagic = "MRINDEX3";
// docs/formats/index.md has these sizes. kMaxHeaderBytes is a guess: the header names kMaxNamedBroken lines at most.
constexpr std::size_t kEntryBytes = 28, kFrameBytes = 28, kMaxHeaderBytes = kMiB;
constexpr int kHashBits = 16;

class BitWriter {
 public:
  explicit BitWriter(std::vector<std::byte>& out) : out_(out) {}
  ~BitWriter() {
    if (held_ > 0) out_.push_back(static_cast<std::byte>(word_));
  }
  void Put(std::uint32_t value, int bits) {
    word_ |= static_cast<std::uint64_t>(value) << held_;
    for (held_ += bits; held_ >= 8; held_ -= 8, word_ >>= 8) out_.push_back(static_cast<std::byte>(word_));
  }

 private:
  std::vector<std::byte>& out_;
  std::uint64_t word_ = 0;
  int held_ = 0;
};

/// Does not check bounds. REQUIRES: the bytes behind `at` hold all bits that are read.
class BitReader {
 public:
  explicit BitReader(const std::byte* at) : at_(at) {}
  std::uint32_t Get(int bits) {
    for (; held_ < bits; held_ += 8) word_ |= static_cast<std::uint64_t>(*at_++) << held_;
    auto value = static_cast<std::uint32_t>(word_ & ((std::uint64_t{1} << bits) - 1));
    word_ >>= bits;
    held_ -= bits;
    return value;
  }

 private:
  const std::byte* at_;
  std::uint64_t word_ = 0;
  int held_ = 0;
};

template <class T>
void AppendLittle(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

std::uint16_t DocumentHash(std::string_view document) {
  const std::uint64_t sum = Crc32c(AsBytes(document));
  return static_cast<std::uint16_t>(Mix64(sum << 32 | (document.size() & 0xffff'ffff)) >> 48);
}

std::uint64_t RecordIndex::broken_count() const {
  return std::accumulate(broken_by_reason_.begin(), broken_by_reason_.end(), std::uint64_t{0});
}

RecordIndex::Block RecordIndex::block(std::size_t i) const {
  const PackedBlock& entry = blocks_[i];
  return {entry.first_record, entry.offset, entry.bytes, entry.records};
}

std::uint64_t RecordIndex::RecordsBefore(std::size_t i) const {
  const std::uint64_t offset = broken_[i].offset;
  const auto behind = std::ranges::upper_bound(blocks_, offset, {}, &PackedBlock::offset);
  if (behind == blocks_.begin()) return i;
  const auto block = static_cast<std::size_t>(behind - blocks_.begin()) - 1;
  std::vector<RecordExtent> extents;
  Decode(block, extents);
  const auto usable = std::ranges::lower_bound(extents, offset, {}, &RecordExtent::offset) - extents.begin();
  return i + blocks_[block].first_record + static_cast<std::uint64_t>(usable);
}

std::uint64_t RecordIndex::PayloadBytes(const PackedBlock& entry) const {
  const std::uint64_t hash_bits = hashes_ ? kHashBits : 0;
  std::uint64_t bits = (entry.records - 1ull) * entry.delta_bits + entry.records * (entry.token_bits + hash_bits);
  return (bits + 7) / 8;
}

void RecordIndex::Decode(std::size_t i, std::vector<RecordExtent>& into) const {
  const PackedBlock& entry = blocks_[i];
  BitReader bits(payload_.data() + entry.payload);
  std::size_t first = into.size();
  into.resize(first + entry.records);
  std::span extents(into.data() + first, entry.records);
  extents[0].offset = entry.offset;
  for (std::size_t k = 1; k < extents.size(); ++k) {
    extents[k - 1].bytes = entry.min_delta + bits.Get(entry.delta_bits);
    extents[k].offset = extents[k - 1].offset + extents[k - 1].bytes;
  }
  extents.back().bytes = static_cast<std::uint32_t>(entry.offset + entry.bytes - extents.back().offset);
  for (RecordExtent& extent : extents) extent.tokens = entry.min_tokens + bits.Get(entry.token_bits);
  if (!hashes_) return;
  for (RecordExtent& extent : extents) extent.hash = static_cast<std::uint16_t>(bits.Get(kHashBits));
}

std::string RecordIndex::Serialize(const IndexIdentity& identity) const {
  Json skipped = Json::object(), broken = Json::array();
  for (int i = 0; i < kBrokenReasons; ++i) {
    if (broken_by_reason_[i] > 0)
      skipped[std::string(BrokenReasonName(static_cast<BrokenReason>(i)))] = broken_by_reason_[i];
  }
  for (const BrokenLine& line : broken_) broken.push_back({line.offset, BrokenReasonName(line.reason)});
  std::string header = DumpJson({{"etag", identity.etag},
                                 {"size", identity.size},
                                 {"template", identity.template_text},
                                 {"tokenizer", identity.tokenizer},
                                 {"format", identity.format},
                                 {"hashes", hashes_},
                                 {"frames", frames_.size()},
                                 {"records", records_},
                                 {"tokens", tokens_},
                                 {"blocks", blocks_.size()},
                                 {"payload", payload_.size()},
                                 {"skipped", std::move(skipped)},
                                 {"broken", std::move(broken)}});
  std::string out(kIndexMagic);
  out.reserve(header.size() + blocks_.size() * kEntryBytes + payload_.size() + 16);
  AppendLittle(out, static_cast<std::uint32_t>(header.size()));
  out += header;
  for (const PackedBlock& entry : blocks_) {
    AppendLittle(out, entry.offset);
    for (std::uint32_t word : {entry.bytes, entry.payload, entry.min_delta, entry.min_tokens}) AppendLittle(out, word);
    AppendLittle(out, entry.delta_bits);
    AppendLittle(out, entry.token_bits);
    AppendLittle(out, entry.records);
  }
  out += AsText(payload_);
  for (const IndexedFrame& one : frames_) {
    AppendLittle(out, one.frame.offset);
    AppendLittle(out, one.frame.bytes);
    for (std::uint32_t word : {one.content_bytes, one.frame.skip, static_cast<std::uint32_t>(one.frame.state.size())}) {
      AppendLittle(out, word);
    }
    out += one.frame.state;
  }
  AppendLittle(out, Crc32c(AsBytes(out)));
  return out;
}

Status RecordIndex::ParseHeader(std::string_view header, const IndexIdentity& expected, Sections& sections) {
  Json json = MR_TRY(ParseJson(header, "record index header"));
  IndexIdentity found;
  found.etag = MR_TRY(JsonString(json, "etag"));
  found.size = MR_TRY(JsonUint(json, "size"));
  found.template_text = MR_TRY(JsonString(json, "template"));
  found.tokenizer = MR_TRY(JsonString(json, "tokenizer"));
  found.format = MR_TRY(JsonString(json, "format"));
  found.hashes = expected.hashes;
  const Json* hashes = JsonFind(json, "hashes");
  hashes_ = hashes && hashes->is_boolean() && hashes->get<bool>();
  if (expected.hashes && !hashes_) return Fail(Code::kStale, "record index without hashes of documents");
  if (found != expected) {
    return Fail(Code::kStale, "record index is for version {} of {} bytes, not for {} of {}", found.etag, found.size,
                expected.etag, expected.size);
  }
  records_ = MR_TRY(JsonUint(json, "records"));
  tokens_ = MR_TRY(JsonUint(json, "tokens"));
  sections.blocks = MR_TRY(JsonUint(json, "blocks"));
  sections.payload = MR_TRY(JsonUint(json, "payload"));
  sections.frames = MR_TRY(JsonUint(json, "frames"));
  const Json* skipped = JsonFind(json, "skipped");
  const Json* broken = JsonFind(json, "broken");
  if (!skipped || !skipped->is_object() || !broken || !broken->is_array() || broken->size() > kMaxNamedBroken) {
    return Fail(Code::kCorrupt, "record index header lacks its broken records");
  }
  for (const auto& [name, count] : skipped->items()) {
    broken_by_reason_[static_cast<std::size_t>(MR_TRY(ParseBrokenReason(name)))] = MR_TRY(JsonUint(*skipped, name));
    (void)count;
  }
  for (const Json& line : *broken) {
    if (!line.is_array() || line.size() != 2 || !line[0].is_number_unsigned() || !line[1].is_string()) {
      return Fail(Code::kCorrupt, "record index header names a broken record in an unknown way");
    }
    const auto reason = MR_TRY(ParseBrokenReason(line[1].get<std::string>()));
    broken_.push_back({line[0].get<std::uint64_t>(), reason});
  }
  return {};
}

/// Checks that no block leads a read out of bounds. The file's checksum does not protect against a malicious writer.
Status RecordIndex::CheckBlocks(std::uint64_t content_bytes) const {
  std::uint64_t records = 0, end = 0, tokens = 0;
  std::vector<RecordExtent> extents;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const PackedBlock& entry = blocks_[i];
    bool sane = entry.records >= 1 && entry.records <= 256 && entry.delta_bits <= 32 && entry.token_bits <= 32 &&
                entry.offset >= end && entry.offset <= content_bytes && entry.bytes <= content_bytes - entry.offset &&
                entry.payload <= payload_.size() && PayloadBytes(entry) <= payload_.size() - entry.payload;
    if (!sane) return Fail(Code::kCorrupt, "record index: block {} is out of bounds", i);
    extents.clear();
    Decode(i, extents);
    std::uint64_t block_end = entry.offset + entry.bytes, at = entry.offset;
    for (const RecordExtent& extent : extents) {
      if (extent.offset != at || extent.bytes == 0 || extent.bytes > block_end - at) {
        return Fail(Code::kCorrupt, "record index: block {} has a record out of bounds", i);
      }
      at += extent.bytes;
      tokens += extent.tokens;
    }
    if (entry.first_record != records) return Fail(Code::kCorrupt, "record index: block {} is misplaced", i);
    records += entry.records;
    end = block_end;
  }
  if (records != records_ || tokens != tokens_) return Fail(Code::kCorrupt, "record index: its sums do not hold");
  return {};
}

Result<RecordIndex> RecordIndex::Parse(std::string_view bytes, const IndexIdentity& expected) {
  constexpr std::size_t kFixed = kIndexMagic.size() + 4, kCrc = 4;
  if (bytes.size() < kFixed + kCrc || !bytes.starts_with(kIndexMagic))
    return Fail(Code::kCorrupt, "not a record index");
  std::string_view body = bytes.substr(0, bytes.size() - kCrc);
  if (Crc32c(AsBytes(body)) != LoadLittle<std::uint32_t>(AsBytes(bytes).data() + body.size())) {
    return Fail(Code::kCorrupt, "record index: its checksum does not hold");
  }
  auto header_bytes = LoadLittle<std::uint32_t>(AsBytes(bytes).data() + kIndexMagic.size());
  body.remove_prefix(kFixed);
  if (header_bytes > kMaxHeaderBytes || header_bytes > body.size()) {
    return Fail(Code::kCorrupt, "record index: its header does not fit");
  }
  RecordIndex index;
  Sections sections;
  MR_TRY(index.ParseHeader(body.substr(0, header_bytes), expected, sections));
  body.remove_prefix(header_bytes);
  std::uint64_t blocks = sections.blocks, payload = sections.payload;
  if (blocks > body.size() / kEntryBytes || payload > body.size() - blocks * kEntryBytes) {
    return Fail(Code::kCorrupt, "record index: {} blocks do not fit", blocks);
  }
  ByteSpan table = AsBytes(body);
  index.payload_.assign(table.begin() + blocks * kEntryBytes, table.begin() + blocks * kEntryBytes + payload);
  index.blocks_.resize(blocks);
  std::uint64_t records = 0;
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::byte* at = table.data() + i * kEntryBytes;
    PackedBlock& entry = index.blocks_[i];
    entry = {records,
             LoadLittle<std::uint64_t>(at),
             LoadLittle<std::uint32_t>(at + 8),
             LoadLittle<std::uint32_t>(at + 12),
             LoadLittle<std::uint32_t>(at + 16),
             LoadLittle<std::uint32_t>(at + 20),
             LoadLittle<std::uint8_t>(at + 24),
             LoadLittle<std::uint8_t>(at + 25),
             LoadLittle<std::uint16_t>(at + 26)};
    records += entry.records;
  }
  MR_TRY(index.ParseFrames(body.substr(blocks * kEntryBytes + payload), sections.frames, expected.size));
  MR_TRY(index.CheckBlocks(expected.format.empty() ? expected.size : index.FramedBytes()));
  return index;
}

Status RecordIndex::ParseFrames(std::string_view bytes, std::uint64_t count, std::uint64_t object_bytes) {
  if (count > bytes.size() / kFrameBytes) return Fail(Code::kCorrupt, "record index: {} frames do not fit", count);
  frames_.reserve(count);
  std::uint64_t content = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (bytes.size() < kFrameBytes) return Fail(Code::kCorrupt, "record index: frame {} is cut off", i);
    const std::byte* at = AsBytes(bytes).data();
    IndexedFrame one{.frame = {.offset = LoadLittle<std::uint64_t>(at),
                               .bytes = LoadLittle<std::uint64_t>(at + 8),
                               .skip = LoadLittle<std::uint32_t>(at + 20)},
                     .content_offset = content,
                     .content_bytes = LoadLittle<std::uint32_t>(at + 16)};
    auto state = LoadLittle<std::uint32_t>(at + 24);
    bytes.remove_prefix(kFrameBytes);
    if (state > bytes.size() || one.content_bytes > kMaxFrameContent || one.frame.offset > object_bytes ||
        one.frame.bytes > object_bytes - one.frame.offset) {
      return Fail(Code::kCorrupt, "record index: frame {} is out of bounds", i);
    }
    one.frame.state = bytes.substr(0, state);
    bytes.remove_prefix(state);
    content += one.content_bytes;
    frames_.push_back(std::move(one));
  }
  if (!bytes.empty()) return Fail(Code::kCorrupt, "record index: {} bytes too many", bytes.size());
  return {};
}

const IndexedFrame& RecordIndex::FrameAt(std::uint64_t offset) const {
  auto after = std::ranges::upper_bound(frames_, offset, {}, &IndexedFrame::content_offset);
  assert(after != frames_.begin());
  return *--after;
}

void RecordIndexBuilder::SetFrame(Frame frame, std::uint32_t content_bytes) {
  assert(index_.frames_.empty() && open_.empty());
  index_.frames_.push_back({std::move(frame), 0, content_bytes});
}

void RecordIndexBuilder::Add(std::uint64_t offset, std::uint64_t line_bytes, std::uint32_t tokens, std::uint16_t hash) {
  assert(offset >= open_end_);
  bool fits = open_.size() < kBlockRecords && offset - open_end_ <= kMaxGap &&
              (open_.empty() || offset + line_bytes - open_.front().offset <= kMaxBlockBytes);
  if (!open_.empty() && !fits) CloseBlock();
  open_.push_back({offset, tokens, hash});
  open_end_ = offset + line_bytes;
}

void RecordIndexBuilder::AddBroken(std::uint64_t offset, BrokenReason reason) {
  ++index_.broken_by_reason_[static_cast<std::size_t>(reason)];
  if (index_.broken_.size() < RecordIndex::kMaxNamedBroken) index_.broken_.push_back({offset, reason});
}

void RecordIndexBuilder::CloseBlock() {
  if (open_.empty()) return;
  RecordIndex::PackedBlock entry{.first_record = index_.records_,
                                 .offset = open_.front().offset,
                                 .bytes = static_cast<std::uint32_t>(open_end_ - open_.front().offset),
                                 .payload = static_cast<std::uint32_t>(index_.payload_.size()),
                                 .min_delta = open_.size() > 1 ? UINT32_MAX : 0,
                                 .min_tokens = UINT32_MAX,
                                 .records = static_cast<std::uint16_t>(open_.size())};
  std::uint32_t max_delta = 0, max_tokens = 0;
  auto delta = [this](std::size_t i) { return static_cast<std::uint32_t>(open_[i].offset - open_[i - 1].offset); };
  for (std::size_t i = 0; i < open_.size(); ++i) {
    if (i > 0) {
      entry.min_delta = std::min(entry.min_delta, delta(i));
      max_delta = std::max(max_delta, delta(i));
    }
    entry.min_tokens = std::min(entry.min_tokens, open_[i].tokens);
    max_tokens = std::max(max_tokens, open_[i].tokens);
    index_.tokens_ += open_[i].tokens;
  }
  entry.delta_bits = open_.size() > 1 ? std::bit_width(max_delta - entry.min_delta) : 0;
  entry.token_bits = std::bit_width(max_tokens - entry.min_tokens);
  {
    BitWriter bits(index_.payload_);
    for (std::size_t i = 1; i < open_.size(); ++i) bits.Put(delta(i) - entry.min_delta, entry.delta_bits);
    for (const Pending& record : open_) bits.Put(record.tokens - entry.min_tokens, entry.token_bits);
    for (const Pending& record : open_) bits.Put(record.hash, index_.hashes_ ? kHashBits : 0);
  }
  index_.records_ += open_.size();
  index_.blocks_.push_back(entry);
  open_.clear();
}

void RecordIndexBuilder::Append(const RecordIndex& next) {
  assert(next.hashes_ == index_.hashes_);
  CloseBlock();
  auto shift = static_cast<std::uint32_t>(index_.payload_.size());
  const std::uint64_t content = index_.FramedBytes();
  for (IndexedFrame frame : next.frames_) {
    frame.content_offset += content;
    index_.frames_.push_back(std::move(frame));
  }
  for (RecordIndex::PackedBlock entry : next.blocks_) {
    entry.payload += shift;
    entry.offset += content;
    entry.first_record += index_.records_;
    index_.blocks_.push_back(entry);
  }
  index_.payload_.insert(index_.payload_.end(), next.payload_.begin(), next.payload_.end());
  index_.records_ += next.records_;
  index_.tokens_ += next.tokens_;
  for (int i = 0; i < kBrokenReasons; ++i) index_.broken_by_reason_[i] += next.broken_by_reason_[i];
  for (const BrokenLine& line : next.broken_) {
    if (index_.broken_.size() == RecordIndex::kMaxNamedBroken) break;
    index_.broken_.push_back({line.offset + content, line.reason});
  }
}

Result<RecordIndex> RecordIndexBuilder::Finish() {
  CloseBlock();
  if (index_.payload_.size() > UINT32_MAX) {
    return Fail(Code::kResourceExhausted, "{} records are too many for one index; split the object", index_.records_);
  }
  return std::move(index_);
}

}  // namespace millrace::data
