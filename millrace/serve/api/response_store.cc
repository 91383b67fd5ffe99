#include "millrace/serve/api/response_store.h"

#include <algorithm>
#include <utility>

namespace millrace::serve {

void ResponseStore::Put(std::string id, int user, const Json& messages) {
  std::string text = DumpJson(messages);
  MutexLock lock(mutex_);
  bytes_ += text.size();
  kept_.push_front({.id = std::move(id), .user = user, .messages = std::move(text)});
  while (bytes_ > most_bytes_) {
    bytes_ -= kept_.back().messages.size();
    kept_.pop_back();
  }
}

std::optional<Json> ResponseStore::Find(const std::string& id, int user) {
  MutexLock lock(mutex_);
  const auto found = std::ranges::find_if(kept_, [&](const Kept& each) { return each.id == id && each.user == user; });
  if (found == kept_.end()) return std::nullopt;
  kept_.splice(kept_.begin(), kept_, found);
  auto messages = ParseJson(found->messages, "a conversation");
  return messages ? std::optional(*std::move(messages)) : std::nullopt;
}

}  // namespace millrace::serve
