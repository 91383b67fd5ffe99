#include "millrace/checkpoint/read/gguf_reader.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

constexpr std::uint64_t kRequest = 32 * kMiB;  ///< as StoreReader's
constexpr std::string_view kGgufSuffix = ".gguf";

}  // namespace

bool IsGgufUrl(std::string_view url) { return url.ends_with(kGgufSuffix); }

Result<std::unique_ptr<GgufReader>> GgufReader::Open(object::Connection& connection, std::string_view url,
                                                     object::Call call) {
  object::Location file = MR_TRY(object::Locate(connection, url));
  OpenedGguf opened = MR_TRY(OpenGgufFile(file, std::nullopt, std::move(call)));
  std::string name = fmt::format("{}/{}", file.store->Describe(), file.key);
  return std::unique_ptr<GgufReader>(new GgufReader(file, std::move(opened), std::move(name)));
}

GgufReader::GgufReader(object::ReadLocation file, OpenedGguf opened, std::string name)
    : file_(std::move(file)), info_(std::move(opened.info)), model_(std::move(opened.model)), name_(std::move(name)) {
  manifest_.meta = Json::object();
  manifest_.meta[std::string(kMetaModelConfig)] = model_.config;
  if (!model_.transposed.empty()) manifest_.meta[std::string(kMetaTransposed)] = model_.transposed;
  manifest_.files[info_.key.substr(info_.key.rfind('/') + 1)] = {.size = info_.size};
  for (const GgufPart& part : model_.parts) {
    const std::string tensor = std::string(kModelGroup) + part.name;
    manifest_.tensors.emplace(tensor, part.meta);
    parts_.emplace(tensor, &part);
  }
}

Status GgufReader::Read(std::string_view tensor, std::uint64_t begin, MutableByteSpan into, object::Call call) {
  return ReadRange({std::string(tensor), begin, into}, call);
}

Status GgufReader::ReadMany(const std::vector<TensorRange>& wanted, int, object::Call call) {
  for (const TensorRange& range : wanted) MR_TRY(ReadRange(range, call));
  return {};
}

Status GgufReader::ReadRange(const TensorRange& wanted, const object::Call& call) const {
  const auto found = parts_.find(wanted.tensor);
  if (found == parts_.end()) {
    return Fail(Code::kNotFound, "{} has no tensor {}; `millrace ckpt show` shows those that it has", name_,
                wanted.tensor);
  }
  const GgufPart& part = *found->second;
  const std::uint64_t width = DTypeBytes(part.meta.dtype), elements = wanted.into.size() / width;
  if (elements == 0) return {};
  const Box whole;
  const BoxRun run{wanted.box, wanted.begin, elements}, all{whole, 0, part.meta.elements()};
  std::uint64_t first = std::numeric_limits<std::uint64_t>::max(), last = 0;
  ForEachCommon(part.meta.shape, run, all, [&](std::uint64_t, std::uint64_t at, std::uint64_t count) {
    first = std::min(first, at);
    last = std::max(last, at + count);
  });
  const std::uint64_t unit = part.unit_elements(), first_unit = first / unit,
                      units = (last + unit - 1) / unit - first_unit;
  Buffer stored(units * part.stored_unit_bytes()), decoded(units * part.unit_bytes());
  MR_TRY(Fetch(part.offset + first_unit * part.stored_unit_bytes(), stored.span(), call));
  part.Decode(stored, decoded.span());
  ForEachCommon(part.meta.shape, run, all, [&](std::uint64_t in_box, std::uint64_t at, std::uint64_t count) {
    std::memcpy(wanted.into.data() + (in_box - wanted.begin) * width, decoded.data() + (at - first_unit * unit) * width,
                count * width);
  });
  return {};
}

Status GgufReader::Fetch(std::uint64_t offset, MutableByteSpan into, const object::Call& call) const {
  for (std::uint64_t done = 0; done < into.size(); done += kRequest) {
    const MutableByteSpan some = into.subspan(done, std::min<std::uint64_t>(kRequest, into.size() - done));
    const object::GetOptions range{.range = object::ByteRange{offset + done, some.size()}, .if_match = info_.etag};
    const auto got = MR_TRY(object::Get(*file_.store, file_.key, range, some, call));
    if (!got || got->bytes != some.size()) return Fail(Code::kStale, "{} changed while it was read", name_);
  }
  return {};
}

Result<Reader::VerifyStats> GgufReader::Verify(int, object::Call call, const ByteProgress& progress) {
  VerifyStats stats{.files = 1};
  for (const GgufPart& part : model_.parts) {
    Buffer stored(part.stored_bytes);
    MR_TRY(Fetch(part.offset, stored.span(), call));
    stats.bytes += stored.size();
    if (progress) progress(stored.size());
  }
  return stats;
}

}  // namespace millrace::checkpoint
