// Objects and local files beneath a place, one after the other in the order of their names.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "millrace/object/file/walk.h"
#include "millrace/object/read_store.h"

namespace millrace::transfer {

/// Something to copy, compare or delete.
struct Item {
  std::string name;  ///< relative to the place: the key or path without the prefix
  object::ObjectInfo info;
};

/// Yields items in the byte order of their names. One owner.
class ItemStream {
 public:
  virtual ~ItemStream() = default;
  /// Blocks. Nothing at the end.
  virtual Result<std::optional<Item>> Next() = 0;
};

/// The keys that begin with `prefix`, a page asked for ahead. Items are named by what follows the first `name_from`
/// bytes of their keys. `store` must outlive the stream.
std::unique_ptr<ItemStream> ListStore(object::ReadStore& store, std::string prefix, std::size_t name_from,
                                      object::Call call);

using Links = object::TreeWalker::Links;
/// The files beneath the local folder "/`prefix`" (a key of the file store of "/"), named as above. What cannot be read
/// or named is told to `on_problem` and passed over. Symbolic links are followed or, for those who remove, items of
/// their own (see TreeWalker::Links).
Result<std::unique_ptr<ItemStream>> ListLocal(std::string prefix, std::size_t name_from,
                                              std::function<void(const std::string& path, const Error&)> on_problem,
                                              object::Call call, Links links = Links::kFollow);

}  // namespace millrace::transfer
