#include "apps/millrace/objects/metadata_check.h"

#include <utility>
#include <vector>

#include "apps/millrace/cli/cli.h"
#include "millrace/object/blocking.h"

namespace millrace::cli {
namespace {

using Headers = std::vector<std::pair<const char*, std::string>>;

/// Returns the headers that describe an object's content.
Headers HeadersOf(const std::string& content_type, const object::Attributes& attributes) {
  return {{"Content-Type", content_type},
          {"Cache-Control", attributes.cache_control},
          {"Content-Encoding", attributes.content_encoding},
          {"Content-Disposition", attributes.content_disposition},
          {"Content-Language", attributes.content_language},
          {"Expires", attributes.expires}};
}

/// Returns the names of what was sent and is not there. A store may write a header in another form.
std::vector<std::string> Lost(const object::PutOptions& sent, const object::ObjectInfo& there) {
  std::vector<std::string> lost;
  for (const auto& [name, value] : sent.metadata) {
    if (!there.metadata.contains(name)) lost.push_back(name);
  }
  const Headers wanted = HeadersOf(sent.content_type, sent.attributes);
  const Headers found = HeadersOf(there.content_type, there.attributes ? *there.attributes : object::Attributes());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i].second.empty() && found[i].second.empty()) lost.emplace_back(wanted[i].first);
  }
  return lost;
}

}  // namespace

void MetadataCheck::Look(object::Store& store, const std::string& key, const std::string& name,
                         const object::PutOptions& sent, const object::Call& call) {
  if (Lost(sent, {}).empty() || looked_.exchange(true)) return;
  const auto there = object::Head(store, key, call);
  if (!there || !*there) return;
  const std::vector<std::string> lost = Lost(sent, **there);
  if (lost.empty()) return;
  PrintError("millrace: {}: the store has not kept {}; other objects of this command may lack the same\n", name,
             fmt::join(lost, ", "));
}

}  // namespace millrace::cli
