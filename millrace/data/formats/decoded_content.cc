#include "millrace/data/formats/decoded_content.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "millrace/base/hash/crc.h"
#include "millrace/data/compression/decoder.h"
#include "millrace/data/compression/input_stream.h"
#include "millrace/data/compression/object_beginning.h"
#include "millrace/data/formats/syntax.h"

namespace millrace::data {
namespace {

/// While a record goes on behind the end of a frame, a seek point this far behind the last one replaces it. So the next
/// frame starts near its first record. A guess: one read of about half a MiB.
constexpr std::uint64_t kSeekPointSpacing = 512 * kKiB;
constexpr std::size_t kStepBytes = 256 * kKiB;  ///< decoded at a time; a guess: fits in the second-level cache
constexpr std::size_t kStateHead = 8;           ///< u32 length and u32 crc32c

/// The parsed state of a frame.
struct FrameState {
  std::uint32_t length = 0, crc = 0;
  std::string decoder_state;

  std::string Pack() const {
    std::string packed(kStateHead, '\0');
    StoreLittle(reinterpret_cast<std::byte*>(packed.data()), length);
    StoreLittle(reinterpret_cast<std::byte*>(packed.data() + 4), crc);
    return packed + decoder_state;
  }
  static Result<FrameState> Parse(std::string_view packed) {
    if (packed.size() < kStateHead) return Fail(Code::kCorrupt, "a frame's state is cut off");
    return FrameState{.length = LoadLittle<std::uint32_t>(AsBytes(packed).data()),
                      .crc = LoadLittle<std::uint32_t>(AsBytes(packed).data() + 4),
                      .decoder_state = std::string(packed.substr(kStateHead))};
  }
};

/// Finds the frames of an object in one pass. A frame ends at the first end of a record behind the next seek point.
class FrameScan {
 public:
  FrameScan(std::string_view url, std::string_view format, Compression compression, const Syntax& syntax,
            Decoder& decoder, const FrameSink& found)
      : url_(url),
        format_(format),
        compression_(compression),
        syntax_(syntax),
        decoder_(decoder),
        found_(found),
        splitter_(syntax_.NewSplitter()),
        buffer_(kFrameTarget + 4 * kStepBytes) {}

  Status Run() {
    while (!at_end_) {
      MR_TRY(DecodeSome());
      MR_TRY(CutFrames());
    }
    if (filled_ == 0) return {};
    MR_TRY(splitter_->Find(AsText(buffer_.span().first(filled_)), filled_, true));  // fails if the data are cut off
    return Emit(filled_);
  }

 private:
  /// A seek point, and its position in the decoded data.
  struct SeekPosition {
    SeekPoint seek_point;
    std::uint64_t at = 0;
  };

  Status DecodeSome() {
    MR_TRY(CheckSize());
    if (buffer_.size() - filled_ < kStepBytes) {
      Buffer larger(2 * buffer_.size());
      std::memcpy(larger.data(), buffer_.data(), filled_);
      buffer_ = std::move(larger);
    }
    const std::uint64_t now = begin_ + filled_;
    const bool wants_seek_point = now >= begin_ + kFrameTarget && (!next_ || now >= next_->at + kSeekPointSpacing);
    const auto decoded = MR_TRY(decoder_.Decode(buffer_.span().subspan(filled_, kStepBytes), wants_seek_point));
    filled_ += decoded.bytes;
    if (now == 0 && compression_ == Compression::kNone) {
      MR_TRY(RequireUncompressed(AsText(buffer_.span().first(filled_))));
    }
    at_end_ = decoded.at_end;
    if (decoded.at_seek_point) next_ = {decoder_.seek_point(), begin_ + filled_};
    return {};
  }

  Status CheckSize() const {
    if (filled_ < kMaxFrameContent) return {};
    if (next_) {
      return Fail(Code::kUnsupported, "a record of more than {} MiB at byte {} of the data; is this really {}?",
                  kMaxFrameContent / kMiB, begin_, format_);
    }
    return Fail(Code::kUnsupported, "{} MiB of data from byte {} on cannot be read in parts: {}",
                kMaxFrameContent / kMiB, current_.seek_point.offset, CureForDistantSeekPoints(compression_, url_));
  }

  Status CutFrames() {
    while (next_) {
      std::string_view bytes = AsText(buffer_.span().first(filled_));
      auto end = MR_TRY(splitter_->Find(bytes, next_->at - begin_, at_end_));
      if (!end) return {};
      MR_TRY(Emit(*end));
      current_ = *std::exchange(next_, std::nullopt);
    }
    return {};
  }

  /// Passes the first `bytes` of the buffer to found_ as a frame.
  Status Emit(std::size_t bytes) {
    Buffer rest(kFrameTarget + 4 * kStepBytes + (filled_ - bytes));
    std::memcpy(rest.data(), buffer_.data() + bytes, filled_ - bytes);
    Buffer records = std::exchange(buffer_, std::move(rest));
    records.Shrink(bytes);
    FrameState state{.length = static_cast<std::uint32_t>(bytes),
                     .crc = Crc32c(records),
                     .decoder_state = current_.seek_point.state};
    Frame frame{.offset = current_.seek_point.offset,
                .bytes = decoder_.position() - current_.seek_point.offset,
                .skip = static_cast<std::uint32_t>(begin_ - current_.at),
                .state = state.Pack()};
    begin_ += bytes;
    filled_ -= bytes;
    splitter_->Restart(begin_);
    const std::uint64_t first = begin_ - bytes;
    auto lines = syntax_.ToLines(std::move(records), first);
    if (!lines && lines.error().code() == Code::kUnsupported) {
      return Fail(lines.error().Context(fmt::format("the records from byte {} of the data on", first)));
    }
    if (!lines) return Fail(lines.error());
    if (lines->empty()) return {};
    return found_(std::move(frame), *std::move(lines));
  }

  const std::string_view url_, format_;
  const Compression compression_;
  const Syntax& syntax_;
  Decoder& decoder_;
  const FrameSink& found_;
  const std::unique_ptr<RecordSplitter> splitter_;
  SeekPosition current_;              ///< where the frame in the buffer starts
  std::optional<SeekPosition> next_;  ///< where the next frame starts
  std::uint64_t begin_ = 0;           ///< position of the buffer in the decoded data; a record starts there
  Buffer buffer_;
  std::size_t filled_ = 0;
  bool at_end_ = false;
};

class DecodedContent final : public Content {
 public:
  DecodedContent(const DataObject& object, const DataFormat& format)
      : object_{.store = object.store, .info = object.info, .url = object.url},
        compression_(format.compression),
        has_lines_(format.layout == RecordLayout::kCsv || format.layout == RecordLayout::kTsv),
        name_(format.Name()),
        syntax_(MakeSyntax(format)) {}

  std::string_view format() const override { return name_; }

  Status FindFrames(const FrameSink& found, object::Call call) const override {
    ObjectInputStream stream(object_, 0, std::move(call));
    auto decoder = MR_TRY(MakeDecoder(compression_, stream, {}));
    auto scanned = FrameScan(object_.url, name_, compression_, *syntax_, *decoder, found).Run();
    return scanned ? scanned : Named(scanned.error());
  }

  Result<Buffer> ReadFrame(const Frame& frame, object::Call call) const override {
    auto records = frame.bytes > kMaxFrameContent ? ReadStreamed(frame, std::move(call)) : ReadWhole(frame, call);
    if (!records) return Named(records.error());
    // ToLines wants an exact offset only for 0, the start of the data. Only the first frame has this sum 0.
    auto lines = syntax_->ToLines(*std::move(records), frame.offset + frame.skip);
    return lines ? std::move(lines) : Named(lines.error());
  }

  Result<std::vector<std::string>> NameRecords(std::span<const std::uint64_t> records,
                                               object::Call call) const override {
    std::vector<std::string> names;
    if (!has_lines_) return names;
    ObjectInputStream input(object_, 0, std::move(call));
    auto decoder = MR_TRY(MakeDecoder(compression_, input, {}));
    const auto splitter = syntax_->NewSplitter();
    Buffer step(kStepBytes);
    std::string rest;  // starts with a record
    std::uint64_t offset = 0, line = 1, number = 0;
    for (bool at_end = false; !at_end && names.size() < records.size();) {
      const auto decoded = MR_TRY(decoder->Decode(step.span(), false));
      rest += AsText(step.span().first(decoded.bytes));
      at_end = decoded.at_end;
      std::size_t begin = 0;
      while (begin < rest.size() && names.size() < records.size()) {
        const auto end = MR_TRY(splitter->Find(std::string_view(rest).substr(begin), 1, at_end));
        if (!end) break;
        const std::string_view record = std::string_view(rest).substr(begin, *end);
        const bool is_record = !MR_TRY(syntax_->ToLines(ToBuffer(record), offset)).empty();
        if (is_record && number++ == records[names.size()]) {
          const std::string form = syntax_->DescribeForm(record);
          names.push_back(form.empty() ? fmt::format("line {}", line) : fmt::format("line {} ({})", line, form));
        }
        line += static_cast<std::uint64_t>(std::ranges::count(record, '\n'));
        offset += record.size();
        begin += record.size();
        splitter->Restart(offset);
      }
      rest.erase(0, begin);
    }
    return names;
  }

 private:
  /// Puts the object's URL in front of errors of the data. Errors of the store have it already.
  std::unexpected<Error> Named(const Error& error) const {
    bool of_data = error.code() == Code::kCorrupt || error.code() == Code::kUnsupported;
    return Fail(of_data ? error.Context(object_.url) : error);
  }

  Result<Buffer> ReadWhole(const Frame& frame, const object::Call& call) const {
    Buffer bytes(frame.bytes);
    MR_TRY(ReadRange(object_, frame.offset, bytes.span(), "reading records of", call));
    MemoryInputStream input(bytes);
    return Decode(frame, input);
  }

  /// Reads a frame whose seek point is far in front of its records.
  Result<Buffer> ReadStreamed(const Frame& frame, object::Call call) const {
    ObjectInputStream input(object_, frame.offset, std::move(call));
    return Decode(frame, input);
  }

  Result<Buffer> Decode(const Frame& frame, InputStream& input) const {
    FrameState state = MR_TRY(FrameState::Parse(frame.state));
    if (state.length > 2 * kMaxFrameContent) return Fail(Code::kCorrupt, "a frame of {} bytes", state.length);
    auto decoder = MR_TRY(MakeDecoder(compression_, input, {frame.offset, std::move(state.decoder_state)}));
    Buffer scratch(std::min<std::size_t>(frame.skip, kStepBytes));
    for (std::uint32_t left = frame.skip; left > 0;) {
      auto into = scratch.span().first(std::min<std::size_t>(left, scratch.size()));
      const auto decoded = MR_TRY(decoder->Decode(into, false));
      left -= static_cast<std::uint32_t>(decoded.bytes);
      if (decoded.at_end && left > 0) return Changed(frame);
    }
    Buffer records(state.length);
    const auto decoded = MR_TRY(decoder->Decode(records.span(), false));
    if (decoded.bytes != records.size() || Crc32c(records) != state.crc) return Changed(frame);
    return records;
  }

  static std::unexpected<Error> Changed(const Frame& frame) {
    return Fail(Code::kCorrupt,
                "the data at byte {} are not those that its index was made of; if they are right, delete "
                "the index",
                frame.offset);
  }

  const DataObject object_;
  const Compression compression_;
  const bool has_lines_;  ///< people count its lines
  const std::string name_;
  const std::unique_ptr<const Syntax> syntax_;
};

}  // namespace

std::shared_ptr<const Content> MakeDecodedContent(const DataObject& object, const DataFormat& format) {
  return std::make_shared<DecodedContent>(object, format);
}

}  // namespace millrace::data
