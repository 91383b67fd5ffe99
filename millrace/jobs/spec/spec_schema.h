// The declarations of the job file's keys as a JSON schema. Editors complete and check job files with it; the tables of
// docs/guide/job-file.md and the types of python/millrace/job.py are made from it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"

namespace millrace::jobs {

/// Returns the schema of job files, in JSON Schema 2020-12. Beside the standard's, each key has these members:
///   x-unit    what a number counts; absent if it counts nothing
///   x-since   the version that first had the key
///   x-form    what may stand there, in Markdown, where type and bounds do not say it
///   x-unset   what holds without the key, in Markdown, where that is not `default`
///   x-required  true if there is no default
///   x-only    conditions, each {"key": path, "values": […]}, all of which must hold where the key stands. A value
///             "(given)" or "(absent)" says that the other key is there, or is not
///   x-defaults  defaults under other conditions: [{"only": […], "default": …}]
///   x-alias   true for another program's word that is read as a key of ours
/// And the schema has `x-words`, the words of other programs: {"word", "programs", "advice", "key"}.
/// What only several keys together tell (that a batch divides among the ranks) is not in it: Spec::Parse() says that.
Json JobSchema();

/// Returns the paths of the keys of this name: {"train.seed", "data.split.seed"}. Thread-safe.
std::vector<std::string> KeysNamed(std::string_view name);

}  // namespace millrace::jobs
