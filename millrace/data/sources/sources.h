// From what a job names to the objects that hold its records.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/data/content/content.h"
#include "millrace/data/loader.h"
#include "millrace/object/connection.h"
#include "millrace/object/store.h"

namespace millrace::data {

/// The objects of all sources, each once, and which of them make up each source.
struct ResolvedSources {
  std::vector<DataObject> objects;
  /// Indexes into `objects`: each once, in the order of their keys, or as the source's list names them.
  std::vector<std::vector<std::uint32_t>> by_source;
  /// Of folders and prefixes, the URLs of objects whose names say that they hold no records (MayHoldRecords).
  std::vector<std::string> left_out;
};

/// An object, a prefix ending in '/', a folder, what a .bin and its .idx have in common, or a glob: '*' stands for any
/// characters, '/' among them, '?' for one. A .bin and its .idx are one object of token ids. "#train" behind any of
/// these chooses what ChooseSplit (hub_folder.h) says is that split, "#config:train" or the like what ChooseByConfig
/// (hub_configs.h) does where the folder's README declares configurations; Source::split says the same. '@' before a
/// URL: that object is a list of all such, one a line ('#' begins a comment; what is not a whole URL or path is
/// relative to the list's folder). Keys with a component that starts with a dot, and empty objects, are left out, and
/// so is, of a folder, a prefix and a glob that ends in '*', what MayHoldRecords says holds none. Every object has the
/// content that its source's format or its name asks for. Fails with kNotFound when a source matches nothing and with
/// kUnsupported on a format that cannot be read. `fields` as in ContentFor. Blocks.
Result<ResolvedSources> ResolveSources(object::Connection& connection, std::span<const Source> sources,
                                       object::Call call = {}, std::span<const std::string> fields = {});

/// Matches the whole of `text`.
bool GlobMatches(std::string_view pattern, std::string_view text);

}  // namespace millrace::data
