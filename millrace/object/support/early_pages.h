// Listings whose pages are asked for before the ones ahead of them have been read.
#pragma once

#include <functional>
#include <string>

#include "millrace/object/read_store.h"

namespace millrace::object {

/// What a store offers besides ReadStore when it finds out where the next page begins before it has read the page:
/// reading a thousand names takes a while in which the server could work.
class EarlyPages {
 public:
  virtual ~EarlyPages() = default;
  /// ReadStore::List, but `next` may run once, before `done` and like it, with the page's continuation. Should the page
  /// then fail nevertheless, `done` tells.
  virtual void ListEarly(ListRequest request, Call call, std::move_only_function<void(std::string)> next,
                         Done<ListPage> done) = 0;

  /// Uses it where the store has it.
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
