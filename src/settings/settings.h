// SPDX-License-Identifier: MIT
// Where the plugin's settings are: the environment, a sluice.conf beside the plugin, /etc/criu/sluice.conf;
// the first that has a name wins.
//
// The file beside is a container's own. Engines hand CRIU a configuration file per container (runc and crun:
// the annotation org.criu.config), and `libdir FOLDER` in it makes CRIU load the plugin from there: a folder
// with a link to the plugin and a sluice.conf. It counts by which path the plugin was loaded, not where a
// link leads (dladdr: as dlopen(3) was given it; CRIU's plugin.c puts libdir and name together).
#pragma once

#include <string>
#include <vector>

#include "settings/config.h"

namespace sluice::plugin {

// In the order in which they count. Main thread.
std::vector<std::string> settings_files();

// The Lookup over all of it, see environment_and_files().
Lookup plugin_settings(LogLines& lines);

}  // namespace sluice::plugin
