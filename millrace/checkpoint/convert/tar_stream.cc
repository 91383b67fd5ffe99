#include "millrace/checkpoint/convert/tar_stream.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "millrace/base/files/confine.h"

namespace millrace::checkpoint {
namespace {

// The fields of a header (POSIX.1-1988 ustar): offsets and sizes in bytes.
constexpr std::size_t kBlock = 512, kName = 0, kNameSize = 100, kSize = 124, kSizeSize = 12, kChecksum = 148,
                      kChecksumSize = 8, kType = 156, kMagic = 257, kPrefix = 345, kPrefixSize = 155;

std::string_view Field(std::string_view block, std::size_t offset, std::size_t size) {
  const std::string_view field = block.substr(offset, size);
  return field.substr(0, std::min(field.find('\0'), field.size()));
}

/// Octal digits between blanks, or GNU's binary form for large numbers.
std::optional<std::uint64_t> Number(std::string_view field) {
  if ((static_cast<unsigned char>(field[0]) & 0x80U) != 0) {
    std::uint64_t number = static_cast<unsigned char>(field[0]) & 0x7FU;
    for (const char byte : field.substr(1)) {
      if (number >> 55U != 0) return std::nullopt;
      number = number << 8U | static_cast<unsigned char>(byte);
    }
    return number;
  }
  const std::size_t begin = field.find_first_not_of(' ');
  if (begin == std::string_view::npos) return std::nullopt;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(field.data() + begin, field.data() + field.size(), number, 8);
  const bool is_whole = end == field.data() + field.size() || *end == ' ' || *end == '\0';
  if (error != std::errc() || !is_whole) return std::nullopt;
  return number;
}

bool ChecksumHolds(std::string_view block) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < block.size(); ++i) {
    const bool is_checksum = i >= kChecksum && i < kChecksum + kChecksumSize;
    sum += is_checksum ? ' ' : static_cast<unsigned char>(block[i]);
  }
  return Number(block.substr(kChecksum, kChecksumSize)) == sum;
}

bool IsZero(std::string_view block) {
  return std::ranges::all_of(block, [](char byte) { return byte == '\0'; });
}

}  // namespace

Status TarStream::Add(ByteSpan bytes) {
  std::string_view rest = AsText(bytes);
  while (!rest.empty() && !ended_) {
    if (part_ == Part::kHeader) {
      const std::size_t take = std::min(rest.size(), kBlock - block_.size());
      block_ += rest.substr(0, take);
      rest.remove_prefix(take);
      if (block_.size() == kBlock) MR_TRY(TakeHeader());
      continue;
    }
    const auto take = static_cast<std::size_t>(std::min<std::uint64_t>(rest.size(), left_ > 0 ? left_ : padding_));
    const std::string_view taken = rest.substr(0, take);
    rest.remove_prefix(take);
    if (left_ == 0) {
      padding_ -= take;
      if (padding_ == 0) part_ = Part::kHeader;
      continue;
    }
    left_ -= take;
    if (part_ == Part::kFile) MR_TRY(visitor_.Data(AsBytes(taken)));
    if (part_ == Part::kExtension) extension_ += taken;
    if (left_ == 0) MR_TRY(EndPart());
  }
  return {};
}

Status TarStream::Finish() const {
  // Some programs write no blocks of zeros.
  if (ended_ || (part_ == Part::kHeader && block_.empty() && zero_blocks_ == 0)) return {};
  if (zero_blocks_ > 0 && block_.empty()) return {};
  return Fail(Code::kCorrupt, "{} is cut off", what_);
}

Status TarStream::TakeHeader() {
  const std::string block = std::move(block_);
  block_.clear();
  if (IsZero(block)) {
    ended_ = ++zero_blocks_ == 2;
    return {};
  }
  zero_blocks_ = 0;
  const auto size = Number(std::string_view(block).substr(kSize, kSizeSize));
  if (!size || !ChecksumHolds(block)) return Fail(Code::kCorrupt, "{} is no tar archive, or is damaged", what_);
  std::string name(Field(block, kName, kNameSize));
  if (std::string_view(block).substr(kMagic, 6) == std::string_view("ustar\0", 6)) {
    const std::string_view prefix = Field(block, kPrefix, kPrefixSize);
    if (!prefix.empty()) name = std::string(prefix) + "/" + name;
  }
  return TakePart(block[kType], *size, std::move(name));
}

Status TarStream::TakePart(char type, std::uint64_t size, std::string name) {
  const bool is_extension = type == 'L' || type == 'K' || type == 'x' || type == 'g';
  if (is_extension && size > kMaxExtensionBytes) {
    return Fail(Code::kCorrupt, "{}: an extension header has {} bytes", what_, size);
  }
  if (!is_extension) {
    if (!long_name_.empty()) name = std::exchange(long_name_, {});
    if (pax_size_ >= 0) size = static_cast<std::uint64_t>(std::exchange(pax_size_, -1));
  }
  while (name.starts_with("./")) name.erase(0, 2);
  if (type == '1' || type == '2') {
    return Fail(Code::kUnsupported, "{}: {} is a link; links are not followed", what_, name);
  }
  const bool is_file = type == '0' || type == '\0' || type == '7';
  const bool is_folder = type == '5' || (is_file && name.ends_with('/'));
  if (!is_extension && !is_file && !is_folder) {
    return Fail(Code::kUnsupported, "{}: {} is neither a file nor a folder (type '{}')", what_, name, type);
  }
  if (size > UINT64_MAX - kBlock) return Fail(Code::kCorrupt, "{}: {} has {} bytes", what_, name, size);
  left_ = size;
  padding_ = (kBlock - size % kBlock) % kBlock;
  if (is_extension) {
    part_ = Part::kExtension;
    extension_type_ = type;
    extension_.clear();
  } else if (is_folder) {
    if (!name.empty() && name != ".") MR_TRY(CheckConfined(name, "", what_));
    part_ = Part::kPassedOver;
  } else {
    MR_TRY(CheckConfined(name, "", what_));
    part_ = Part::kFile;
    MR_TRY(visitor_.Begin(name, size));
  }
  return left_ == 0 ? EndPart() : Status();
}

Status TarStream::EndPart() {
  if (part_ == Part::kFile) MR_TRY(visitor_.End());
  if (part_ == Part::kExtension && extension_type_ == 'L') {
    long_name_ = extension_.substr(0, std::min(extension_.find('\0'), extension_.size()));
  }
  if (part_ == Part::kExtension && extension_type_ == 'x') MR_TRY(TakePax());
  if (padding_ == 0) part_ = Part::kHeader;
  return {};
}

/// Records of the form "LENGTH KEY=VALUE\n", where the length is that of the record (POSIX.1-2001 pax).
Status TarStream::TakePax() {
  std::string_view rest = extension_;
  while (!rest.empty()) {
    std::size_t length = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), length);
    const auto digits = static_cast<std::size_t>(end - rest.data());
    const bool fits = error == std::errc() && length > digits + 1 && length <= rest.size() && rest[digits] == ' ' &&
                      rest[length - 1] == '\n';
    if (!fits) return Fail(Code::kCorrupt, "{}: a pax header is damaged", what_);
    const std::string_view record = rest.substr(digits + 1, length - digits - 2);
    rest.remove_prefix(length);
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos) return Fail(Code::kCorrupt, "{}: a pax header is damaged", what_);
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") long_name_ = value;
    if (key.starts_with("GNU.sparse.")) return Fail(Code::kUnsupported, "{} has a sparse file", what_);
    if (key != "size") continue;
    const auto [last, wrong] = std::from_chars(value.data(), value.data() + value.size(), pax_size_);
    if (wrong != std::errc() || last != value.data() + value.size() || pax_size_ < 0) {
      return Fail(Code::kCorrupt, "{}: a pax header has a size of \"{}\"", what_, value);
    }
  }
  return {};
}

}  // namespace millrace::checkpoint
