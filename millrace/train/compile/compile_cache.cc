#include "millrace/train/compile/compile_cache.h"

#include <algorithm>

#include "millrace/base/files/managed_folder.h"
#include "millrace/base/hash/digest.h"
#include "millrace/base/hash/text_encoding.h"
#include "millrace/object/blocking.h"

namespace millrace::train {
namespace {

constexpr std::uint64_t kFormat = 1;
constexpr std::uint64_t kMaxBytes = 4 * kMiB;  // a document has some kilobytes
constexpr std::string_view kSuffix = ".json";
constexpr std::size_t kHashDigits = 64;

std::string HashOf(const Json& json) { return HexEncode(Sha256(AsBytes(DumpJson(json)))); }

}  // namespace

std::string CompiledEntry::Hash() const { return HashOf({{"made_for", made_for}, {"products", products}}); }

Json CompiledEntry::ToJson() const {
  return {{"format", kFormat}, {"made_for", made_for}, {"products", products}, {"hash", Hash()}};
}

Result<CompiledEntry> CompiledEntry::FromJson(const Json& document, std::string_view name) {
  const Json *made_for = JsonFind(document, "made_for"), *products = JsonFind(document, "products");
  const auto format = JsonUint(document, "format");
  const auto hash = JsonString(document, "hash");
  if (made_for == nullptr || products == nullptr || !products->is_array() || !format || !hash) {
    return Fail(Code::kCorrupt, "{} is not a compiled step", name);
  }
  if (*format != kFormat) {
    return Fail(Code::kUnsupported, "{} is a compiled step of format {}; this version reads format {}", name, *format,
                kFormat);
  }
  CompiledEntry entry{.made_for = *made_for, .products = *products};
  if (entry.Hash() != *hash) return Fail(Code::kCorrupt, "{}: the hash is not that of the content", name);
  return entry;
}

Result<CompileCache> CompileCache::Open(object::Connection& connection, std::string_view url) {
  object::Location folder = MR_TRY(object::Locate(connection, url));
  std::string text(url);
  if (!folder.key.empty() && !folder.key.ends_with('/')) folder.key += '/';
  if (!text.ends_with('/')) text += '/';
  return CompileCache(std::move(folder), std::move(text));
}

Result<std::string> CompileCache::DefaultUrl() {
  return (MR_TRY(DefaultCacheFolder("train.compile_cache")) / "compiled").string();
}

std::string CompileCache::KeyOf(const Json& made_for) const {
  return folder_.key + HashOf(made_for) + std::string(kSuffix);
}

std::string CompileCache::UrlOf(const Json& made_for) const { return url_ + HashOf(made_for) + std::string(kSuffix); }

Result<std::optional<CompiledEntry>> CompileCache::Find(const Json& made_for, object::Call call) {
  const auto content = MR_TRY(object::GetAll(*folder_.store, KeyOf(made_for), kMaxBytes, call));
  if (!content) return std::nullopt;
  const std::string name = UrlOf(made_for);
  auto entry = MR_TRY(CompiledEntry::FromJson(MR_TRY(ParseJson(content->bytes, name)), name));
  if (entry.made_for != made_for) return Fail(Code::kCorrupt, "{} was made for something else", name);
  return entry;
}

Result<CompiledEntry> CompileCache::Keep(const CompiledEntry& entry, object::Call call) {
  const std::string text = DumpJson(entry.ToJson()) + "\n";
  const auto put = object::Put(*folder_.store, KeyOf(entry.made_for), AsBytes(text),
                               {.if_none_match = true, .content_type = "application/json"}, call);
  if (put) return entry;
  if (put.error().code() != Code::kPreconditionFailed) return Fail(put.error());
  // Another run was first. All take the same choices, so that they agree in every bit.
  const auto first = MR_TRY(Find(entry.made_for, call));
  return first ? *first : entry;
}

Result<std::vector<CompileCache::Listed>> CompileCache::List(object::Call call) {
  std::vector<Listed> all;
  MR_TRY(object::ListAll(
      *folder_.store, {.prefix = folder_.key},
      [&](const object::ListPage& page) {
        for (const object::ObjectInfo& info : page.objects) {
          const std::string_view name = std::string_view(info.key).substr(folder_.key.size());
          if (!name.ends_with(kSuffix) || !IsHexName(name.substr(0, name.size() - kSuffix.size()), kHashDigits)) {
            continue;
          }
          all.push_back({.key = info.key, .size = info.size, .modified = info.modified, .entry = std::nullopt});
        }
        return true;
      },
      call));
  for (Listed& listed : all) {
    const auto content = MR_TRY(object::GetAll(*folder_.store, listed.key, kMaxBytes, call));
    if (!content) continue;  // deleted meanwhile
    const auto json = ParseJson(content->bytes, listed.key);
    if (!json) continue;
    if (auto entry = CompiledEntry::FromJson(*json, listed.key)) listed.entry = *std::move(entry);
  }
  std::ranges::sort(all, std::ranges::greater(), &Listed::modified);
  return all;
}

Status CompileCache::Remove(const Listed& listed, object::Call call) {
  return object::Delete(*folder_.store, listed.key, call);
}

}  // namespace millrace::train
