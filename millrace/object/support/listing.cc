#include "millrace/object/support/listing.h"

#include <algorithm>

#include "millrace/base/result.h"

namespace millrace::object {
namespace {

// A continuation is the type of the last item (one of these), followed by the item.
constexpr char kKey = 'k', kPrefix = 'p';

}  // namespace

std::string EndOfPrefix(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && static_cast<unsigned char>(end.back()) == 0xff) end.pop_back();
  if (!end.empty()) end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  return end;
}

Result<PageBuilder> PageBuilder::Start(ListRequest request) {
  if (request.max_keys < 1 || request.max_keys > 1000) {
    return Fail(Code::kInvalidArgument, "a page of {} keys: pages must hold 1 to 1000", request.max_keys);
  }
  PageBuilder page(std::move(request));
  const ListRequest& r = page.request_;
  page.after_ = r.start_after;
  page.start_ = std::max(r.prefix, r.start_after);
  if (!r.continuation.empty()) {
    char kind = r.continuation.front();
    if (kind != kKey && kind != kPrefix) {
      return Fail(Code::kInvalidArgument, "\"{}\" is no continuation of a listing; start the listing again",
                  r.continuation);
    }
    page.after_ = r.continuation.substr(1);
    page.start_ = kind == kPrefix ? EndOfPrefix(page.after_) : page.after_;
  }
  return page;
}

bool PageBuilder::Full() const {
  return page_.objects.size() + page_.common_prefixes.size() >= static_cast<std::size_t>(request_.max_keys);
}

void PageBuilder::Remember(char kind, std::string_view item) {
  last_ = kind;
  last_ += item;
}

PageBuilder::Next PageBuilder::Offer(const ObjectInfo& object) {
  const std::string& key = object.key;
  if (!key.starts_with(request_.prefix)) return key < request_.prefix ? Next::kTaken : Next::kDone;
  if (key <= after_) return Next::kTaken;
  std::size_t cut =
      request_.delimiter.empty() ? std::string::npos : key.find(request_.delimiter, request_.prefix.size());
  std::string_view folder =
      cut == std::string::npos ? std::string_view() : std::string_view(key).substr(0, cut + request_.delimiter.size());
  if (!folder.empty() && folder <= after_) {
    start_ = EndOfPrefix(folder);
    return Next::kSkip;
  }
  if (Full()) {
    page_.continuation = last_;
    return Next::kDone;
  }
  if (folder.empty()) {
    page_.objects.push_back(object);
    page_.objects.back().content_type.clear();
    page_.objects.back().metadata.clear();
    Remember(kKey, key);
    return Next::kTaken;
  }
  page_.common_prefixes.emplace_back(folder);
  Remember(kPrefix, folder);
  start_ = EndOfPrefix(folder);
  return Next::kSkip;
}

}  // namespace millrace::object
