// Streams of objects or local files below a prefix, sorted by name.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "millrace/object/local/walk.h"
#include "millrace/object/read_store.h"

namespace millrace::transfer {

/// An object or file to copy, compare or delete.
struct Item {
  std::string name;  ///< the key or path without the prefix
  object::ObjectInfo info;
};

/// Items in the byte order of their names. One owner. Tests have streams of their own.
class ItemStream {
 public:
  virtual ~ItemStream() = default;
  /// Returns the next item, or nothing at the end. Blocks.
  virtual Result<std::optional<Item>> Next() = 0;
};

/// Returns the keys that begin with `prefix`. Requests one page of the listing ahead. An item's name is its key without
/// the first `name_from` bytes.
/// REQUIRES: `store` outlives the stream.
std::unique_ptr<ItemStream> ListStore(object::ReadStore& store, std::string prefix, std::size_t name_from,
                                      object::Call call);

using Links = object::TreeWalker::Links;
/// Returns whether a problem is about a name that is neither a file nor a folder: a FIFO, a socket, a device, or a link
/// that leads to one or to nothing. Programs that look at a tree need not mind it; those that copy the tree leave it
/// out.
inline bool IsNoFile(const Error& problem) { return problem.code() == Code::kUnsupported; }

/// Returns the files below the local folder "/`prefix`" (a key of the file store of "/"), named as above. Skips names
/// that cannot be read or named and reports them to `on_problem` (TreeWalker::Options::on_problem). `links`: symbolic
/// links are followed or, for removal, are items themselves (see TreeWalker::Links).
Result<std::unique_ptr<ItemStream>> ListLocal(std::string prefix, std::size_t name_from,
                                              std::function<void(const std::string& path, const Error&)> on_problem,
                                              object::Call call, Links links = Links::kFollow);

}  // namespace millrace::transfer
