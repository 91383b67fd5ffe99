// Listings that request the next page before the current one has been parsed.
#pragma once

#include <functional>
#include <string>

#include "millrace/object/read_store.h"

namespace millrace::object {

/// The interface of a store that finds out where the next page begins before it has read the page. Reading a thousand
/// names takes a while in which the server could work.
class EarlyPages {
 public:
  virtual ~EarlyPages() = default;
  /// As ReadStore::List, but `next` may run once before `done`, with the page's continuation. The page may still fail
  /// after that. `next` must obey the rules of completions.
  virtual void ListEarly(ListRequest request, Call call, std::move_only_function<void(std::string)> next,
                         Done<ListPage> done) = 0;

  /// Calls ListEarly if `store` has this interface, else List. Then `next` never runs.
  static void List(ReadStore& store, ListRequest request, Call call, std::move_only_function<void(std::string)> next,
                   Done<ListPage> done) {
    if (auto* early = dynamic_cast<EarlyPages*>(&store)) {
      early->ListEarly(std::move(request), std::move(call), std::move(next), std::move(done));
    } else {
      store.List(std::move(request), std::move(call), std::move(done));
    }
  }
};

}  // namespace millrace::object
