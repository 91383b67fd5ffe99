#include "millrace/checkpoint/read/diff.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>

#include "millrace/checkpoint/format/half.h"
#include "millrace/checkpoint/format/manifest.h"

namespace millrace::checkpoint {
namespace {

/// Converts E5M2 and E4M3 of the OCP 8-bit Floating Point Specification 1.0. E5M2 follows IEEE 754. E4M3 has no
/// infinities, and one NaN for each sign.
template <int kExponentBits, int kMantissaBits>
double Float8ToDouble(std::uint8_t bits) {
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1, kTop = (1 << kExponentBits) - 1, kOne = 1 << kMantissaBits;
  const int exponent = bits >> kMantissaBits & kTop, mantissa = bits & (kOne - 1);
  const double sign = bits & 0x80 ? -1 : 1;
  constexpr bool kHasInfinity = kExponentBits == 5;
  if (exponent == kTop && kHasInfinity) return mantissa ? std::nan("") : sign * INFINITY;
  if (exponent == kTop && mantissa == kOne - 1) return std::nan("");
  return exponent == 0 ? sign * std::ldexp(mantissa, 1 - kBias - kMantissaBits)
                       : sign * std::ldexp(kOne + mantissa, exponent - kBias - kMantissaBits);
}

double ValueAt(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kF32:
      return std::bit_cast<float>(LoadLittle<std::uint32_t>(at));
    case DType::kF16:
      return HalfToFloat(LoadLittle<std::uint16_t>(at));
    case DType::kBF16:
      return Bf16ToFloat(LoadLittle<std::uint16_t>(at));
    case DType::kI64:
      return static_cast<double>(static_cast<std::int64_t>(LoadLittle<std::uint64_t>(at)));
    case DType::kI32:
      return static_cast<std::int32_t>(LoadLittle<std::uint32_t>(at));
    case DType::kF64:
      return std::bit_cast<double>(LoadLittle<std::uint64_t>(at));
    case DType::kU64:
      return static_cast<double>(LoadLittle<std::uint64_t>(at));
    case DType::kU32:
      return LoadLittle<std::uint32_t>(at);
    case DType::kI16:
      return static_cast<std::int16_t>(LoadLittle<std::uint16_t>(at));
    case DType::kU16:
      return LoadLittle<std::uint16_t>(at);
    case DType::kI8:
      return static_cast<std::int8_t>(*at);
    case DType::kF8E4M3:
      return Float8ToDouble<4, 3>(static_cast<std::uint8_t>(*at));
    case DType::kF8E5M2:
      return Float8ToDouble<5, 2>(static_cast<std::uint8_t>(*at));
    case DType::kU8:
    case DType::kBool:
      return static_cast<double>(*at);
  }
  return 0;
}

double Greater(double a, double b) { return std::isnan(a) || a > b ? a : b; }

/// The slices of each tensor, sorted by box and first element.
class SliceIndex {
 public:
  explicit SliceIndex(const Manifest& manifest) : manifest_(manifest) {
    for (const Slice& slice : manifest.slices) slices_[slice.tensor].push_back(&slice);
    for (auto& [tensor, slices] : slices_)
      std::ranges::sort(slices,
                        [](auto* a, auto* b) { return std::tie(a->box, a->begin) < std::tie(b->box, b->begin); });
  }
  const std::vector<const Slice*>& Of(const std::string& tensor) const {
    static const std::vector<const Slice*> kNone;
    auto found = slices_.find(tensor);
    return found == slices_.end() ? kNone : found->second;
  }
  const FileMeta& FileOf(const Slice& slice) const { return manifest_.files.at(slice.file); }

 private:
  const Manifest& manifest_;
  std::map<std::string_view, std::vector<const Slice*>> slices_;
};

/// Whether the checksums of the chunks prove that both slices have the same bytes.
bool HaveEqualChecksums(const Slice& a, const FileMeta& in_a, const Slice& b, const FileMeta& in_b,
                        std::uint64_t element) {
  if (std::tie(a.box, a.begin, a.elements, a.offset) != std::tie(b.box, b.begin, b.elements, b.offset)) return false;
  if (in_a.chunk_crc32c.empty() || in_a.chunk_bytes != in_b.chunk_bytes) return false;
  const std::uint64_t end = a.offset + a.elements * element;
  for (std::uint64_t chunk = a.offset / in_a.chunk_bytes; chunk * in_a.chunk_bytes < end; ++chunk) {
    const std::uint64_t begin = chunk * in_a.chunk_bytes;
    // Compare checksums only of chunks of equal length: the last chunk of a file may be short.
    if (std::min(begin + in_a.chunk_bytes, in_a.size) != std::min(begin + in_b.chunk_bytes, in_b.size)) return false;
    if (chunk >= in_b.chunk_crc32c.size() || in_a.chunk_crc32c[chunk] != in_b.chunk_crc32c[chunk]) return false;
  }
  return true;
}

class Comparison {
 public:
  Comparison(Reader& first, Reader& second, const DiffOptions& options, object::Call call)
      : first_(first),
        second_(second),
        in_first_(first.manifest()),
        in_second_(second.manifest()),
        options_(options),
        call_(std::move(call)) {}

  Result<TensorDiff> Compare(const std::string& name) {
    using Change = TensorDiff::Change;
    TensorDiff diff{.name = name};
    const auto& firsts = first_.manifest().tensors;
    const auto& seconds = second_.manifest().tensors;
    auto a = firsts.find(name), b = seconds.find(name);
    if (b == seconds.end()) {
      diff.change = Change::kOnlyInFirst;
    } else if (a == firsts.end()) {
      diff.change = Change::kOnlyInSecond;
    } else if (a->second.dtype != b->second.dtype) {
      diff.change = Change::kRetyped;
      diff.first = a->second;
      diff.second = b->second;
    } else if (a->second != b->second) {
      diff.change = Change::kReshaped;
      diff.first = a->second;
      diff.second = b->second;
    } else if (SameByChecksum(name, DTypeBytes(a->second.dtype))) {
      diff.by_checksum = true;
    } else {
      MR_TRY(Read(a->second, diff));
    }
    return diff;
  }

 private:
  bool SameByChecksum(const std::string& name, std::uint64_t element) const {
    return std::ranges::equal(in_first_.Of(name), in_second_.Of(name), [&](const Slice* a, const Slice* b) {
      return HaveEqualChecksums(*a, in_first_.FileOf(*a), *b, in_second_.FileOf(*b), element);
    });
  }

  Status Read(const TensorMeta& meta, TensorDiff& diff) {
    const std::uint64_t element = DTypeBytes(meta.dtype), total = meta.elements();
    const std::uint64_t window = std::min(std::max(options_.window / element, std::uint64_t{1}), total);
    if (left_.size() < window * element) {
      left_ = Buffer(window * element);
      right_ = Buffer(window * element);
    }
    for (std::uint64_t begin = 0; begin < total; begin += window) {
      const std::uint64_t count = std::min(window, total - begin);
      const MutableByteSpan a = left_.span().first(count * element), b = right_.span().first(count * element);
      MR_TRY(first_.ReadMany({{diff.name, begin, a}}, options_.parallel, call_));
      MR_TRY(second_.ReadMany({{diff.name, begin, b}}, options_.parallel, call_));
      if (std::memcmp(a.data(), b.data(), a.size()) == 0) continue;
      for (std::uint64_t at = 0; at < a.size(); at += element) CompareOne(meta.dtype, &a[at], &b[at], diff);
    }
    if (diff.elements > 0) diff.change = TensorDiff::Change::kChanged;
    return {};
  }
  void CompareOne(DType dtype, const std::byte* a, const std::byte* b, TensorDiff& diff) const {
    if (std::memcmp(a, b, DTypeBytes(dtype)) == 0) return;
    ++diff.elements;
    if (!options_.values) return;
    const double x = ValueAt(dtype, a), y = ValueAt(dtype, b);
    diff.max_change = Greater(diff.max_change.value_or(0), std::abs(x - y));
    diff.max_value = Greater(diff.max_value.value_or(0), std::abs(x));
  }

  Reader& first_;
  Reader& second_;
  const SliceIndex in_first_, in_second_;
  const DiffOptions options_;
  const object::Call call_;
  Buffer left_, right_;
};

}  // namespace

std::string_view Name(TensorDiff::Change change) {
  switch (change) {
    case TensorDiff::Change::kSame:
      return "same";
    case TensorDiff::Change::kChanged:
      return "changed";
    case TensorDiff::Change::kReshaped:
      return "reshaped";
    case TensorDiff::Change::kRetyped:
      return "retyped";
    case TensorDiff::Change::kOnlyInFirst:
      return "only_in_first";
    case TensorDiff::Change::kOnlyInSecond:
      return "only_in_second";
  }
  return "";
}

Status DiffCheckpoints(Reader& first, Reader& second, const DiffOptions& options,
                       const std::function<void(const TensorDiff&)>& visit, object::Call call) {
  std::set<std::string> names;
  for (const Reader* reader : {&first, &second})
    for (const auto& [name, meta] : reader->manifest().tensors) names.insert(name);
  Comparison comparison(first, second, options, std::move(call));
  for (const std::string& name : names) visit(MR_TRY(comparison.Compare(name)));
  return {};
}

}  // namespace millrace::checkpoint
