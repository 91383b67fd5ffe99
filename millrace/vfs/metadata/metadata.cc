#include "millrace/vfs/metadata/metadata.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <type_traits>

namespace millrace::vfs {
namespace {

using Etag = std::array<char, 18>;
constexpr std::size_t kDigestBytes = 16;  ///< of an MD5

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/// Parses an ETag that is an MD5, with or without a number of parts. Returns false if FormatDigest would not return the
/// same text.
bool ParseDigest(std::string_view etag, Etag& packed) {
  constexpr std::size_t kDigits = 2 * kDigestBytes;
  if (etag.size() < kDigits) return false;
  for (std::size_t i = 0; i < kDigestBytes; ++i) {
    const int high = HexValue(etag[2 * i]), low = HexValue(etag[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    packed[i] = static_cast<char>(high << 4 | low);
  }
  std::uint16_t parts = 0;
  if (etag.size() > kDigits) {
    const std::string_view number = etag.substr(kDigits + 1);
    auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), parts);
    const bool whole = error == std::errc() && end == number.data() + number.size();
    if (etag[kDigits] != '-' || !whole || number.starts_with('0')) return false;
  }
  std::memcpy(&packed[kDigestBytes], &parts, sizeof parts);
  return true;
}

std::string FormatDigest(const Etag& packed) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string etag;
  for (std::size_t i = 0; i < kDigestBytes; ++i) {
    const auto byte = static_cast<unsigned char>(packed[i]);
    etag += kDigits[byte >> 4];
    etag += kDigits[byte & 15];
  }
  std::uint16_t parts = 0;
  std::memcpy(&parts, &packed[kDigestBytes], sizeof parts);
  if (parts > 0) etag += '-' + std::to_string(parts);
  return etag;
}

bool FitsShort(std::string_view etag) {
  return etag.size() <= Etag().size() && etag.find('\0') == std::string_view::npos;
}

// Stored attributes in packed form, for this process only: a mask of the fields that have values; the values; names and
// values of the extended attributes, each after its length.

/// Calls visit(bit, field) for each field but the extended attributes.
template <class Attributes, class Visit>
void ForEachField(Attributes& a, const Visit& visit) {
  visit(1, a.mode);
  visit(2, a.uid);
  visit(4, a.gid);
  visit(8, a.device);
  visit(16, a.modified);
  visit(32, a.accessed);
  visit(64, a.changed);
}

class Encoder {
 public:
  template <class T>
  void Add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void AddText(std::string_view text) {
    Add(static_cast<std::uint32_t>(text.size()));
    bytes_ += text;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  T Take() {
    T value;
    bytes_.copy(reinterpret_cast<char*>(&value), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }
  std::string TakeText() {
    const auto size = Take<std::uint32_t>();
    std::string text(bytes_.substr(0, size));
    bytes_.remove_prefix(text.size());
    return text;
  }
  bool empty() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

void Encode(const StoredAttributes& attributes, Encoder& into) {
  std::uint8_t mask = 0;
  ForEachField(attributes, [&](int bit, const auto& field) { mask |= static_cast<std::uint8_t>(field ? bit : 0); });
  into.Add(mask);
  ForEachField(attributes, [&](int, const auto& field) {
    if (field) into.Add(*field);
  });
  for (const auto& [name, value] : attributes.xattrs) {
    into.AddText(name);
    into.AddText(value);
  }
}

StoredAttributes Decode(Decoder from) {
  StoredAttributes attributes;
  const auto mask = from.Take<std::uint8_t>();
  ForEachField(attributes, [&]<class T>(int bit, std::optional<T>& field) {
    if (mask & bit) field = from.Take<T>();
  });
  while (!from.empty()) {
    std::string name = from.TakeText();
    attributes.xattrs[std::move(name)] = from.TakeText();
  }
  return attributes;
}

}  // namespace

Metadata FileMetadata(const object::ObjectInfo& info, TimePoint as_of) {
  Metadata state{
      .state = Metadata::State::kFile, .size = info.size, .modified = WholeSeconds(info.modified), .etag = info.etag};
  state.as_of = as_of;
  return state;
}

bool Metadata::SameVersion(const Metadata& other) const {
  return state == other.state && etag == other.etag && size == other.size &&
         WholeSeconds(modified) == WholeSeconds(other.modified);
}

SmallBytes::SmallBytes(std::string_view bytes) {
  if (bytes.empty()) return;
  const auto size = static_cast<std::uint32_t>(bytes.size());
  bytes_ = std::make_unique_for_overwrite<char[]>(sizeof size + size);
  std::memcpy(bytes_.get(), &size, sizeof size);
  bytes.copy(bytes_.get() + sizeof size, size);
}

std::string_view SmallBytes::view() const {
  if (!bytes_) return {};
  std::uint32_t size = 0;
  std::memcpy(&size, bytes_.get(), sizeof size);
  return {bytes_.get() + sizeof size, size};
}

PackedMetadata::PackedMetadata(const Metadata& metadata)
    : size_(metadata.size),
      modified_(metadata.modified),
      as_of_(metadata.as_of),
      bits_(static_cast<std::uint8_t>(static_cast<int>(metadata.state) | (metadata.complete ? kComplete : 0) |
                                      (metadata.settled ? kSettled : 0))) {
  bool inside = ParseDigest(metadata.etag, etag_);
  if (inside) {
    bits_ |= kDigest;
  } else {
    etag_ = {};
    inside = FitsShort(metadata.etag);
    if (inside) std::ranges::copy(metadata.etag, etag_.begin());
  }
  if (inside && !metadata.attributes) return;
  Encoder rest;
  rest.AddText(inside ? "" : metadata.etag);
  if (metadata.attributes) Encode(*metadata.attributes, rest);
  rest_ = SmallBytes(rest.bytes());
}

Metadata PackedMetadata::Unpack() const {
  Metadata metadata{.state = state(), .size = size_, .modified = modified_, .as_of = as_of_};
  metadata.complete = bits_ & kComplete;
  metadata.settled = bits_ & kSettled;
  metadata.etag = bits_ & kDigest ? FormatDigest(etag_) : std::string(etag_.begin(), std::ranges::find(etag_, '\0'));
  if (rest_.view().empty()) return metadata;
  Decoder rest(rest_.view());
  if (std::string long_etag = rest.TakeText(); !long_etag.empty()) metadata.etag = std::move(long_etag);
  if (!rest.empty()) metadata.attributes = std::make_shared<const StoredAttributes>(Decode(rest));
  return metadata;
}

}  // namespace millrace::vfs
