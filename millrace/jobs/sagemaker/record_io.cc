#include "millrace/jobs/sagemaker/record_io.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace millrace::jobs {
namespace {

constexpr std::uint32_t kMagic = 0xced7230a;
constexpr std::array kMagicBytes = {std::byte{0x0a}, std::byte{0x23}, std::byte{0xd7}, std::byte{0xce}};
constexpr std::uint32_t kLengthBits = 29, kAlignment = 4;

/// The kinds of parts.
enum class Part : std::uint8_t { kWhole = 0, kFirst = 1, kMiddle = 2, kLast = 3 };

std::uint32_t WordAt(const std::byte* bytes) {
  std::uint32_t word = 0;
  std::memcpy(&word, bytes, sizeof word);  // little-endian, as this machine is
  return word;
}

}  // namespace

RecordIoDecoder::RecordIoDecoder(std::function<Status(ByteSpan)> on_bytes, std::function<Status()> on_end)
    : on_bytes_(std::move(on_bytes)), on_end_(std::move(on_end)) {}

Status RecordIoDecoder::Add(ByteSpan bytes) {
  while (!bytes.empty() || (in_part_ && length_ == 0 && padding_ == 0)) {
    std::size_t taken = 0;
    if (!in_part_) {
      taken = std::min(bytes.size(), header_.size() - header_size_);
      std::ranges::copy(bytes.first(taken), header_.begin() + static_cast<std::ptrdiff_t>(header_size_));
      header_size_ += taken;
      if (header_size_ == header_.size()) MR_TRY(BeginPart());
    } else if (length_ > 0) {
      taken = std::min<std::size_t>(bytes.size(), length_);
      MR_TRY(on_bytes_(bytes.first(taken)));
      length_ -= static_cast<std::uint32_t>(taken);
    } else if (padding_ > 0) {
      taken = std::min<std::size_t>(bytes.size(), padding_);
      padding_ -= static_cast<std::uint32_t>(taken);
    } else {
      MR_TRY(EndPart());
    }
    bytes = bytes.subspan(taken);
    position_ += taken;
  }
  return {};
}

Status RecordIoDecoder::BeginPart() {
  const std::uint32_t word = WordAt(header_.data() + sizeof kMagic);
  const auto part = static_cast<Part>(word >> kLengthBits);
  const bool begins = part == Part::kWhole || part == Part::kFirst;
  const bool goes_on = part == Part::kMiddle || part == Part::kLast;
  if (WordAt(header_.data()) != kMagic || (!begins && !goes_on) || begins == in_record_) {
    return Fail(Code::kCorrupt, "there is no RecordIO record before byte {} of the stream", position_);
  }
  // Between two parts there were the four bytes that the writer left out.
  if (goes_on) MR_TRY(on_bytes_(kMagicBytes));
  length_ = word & ((1U << kLengthBits) - 1);
  padding_ = (kAlignment - length_ % kAlignment) % kAlignment;
  header_size_ = 0;
  in_part_ = in_record_ = true;
  is_last_ = part == Part::kWhole || part == Part::kLast;
  return {};
}

Status RecordIoDecoder::EndPart() {
  in_part_ = false;
  if (!is_last_) return {};
  in_record_ = false;
  ++records_;
  return on_end_();
}

Status RecordIoDecoder::Finish() const {
  if (!in_record_ && !in_part_ && header_size_ == 0) return {};
  return Fail(Code::kCorrupt, "the stream ends within a RecordIO record, at byte {}", position_);
}

}  // namespace millrace::jobs
