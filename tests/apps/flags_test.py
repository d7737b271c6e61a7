"""Flags, help, version, configuration files and exit codes, as every command has them."""
import re
import subprocess
import unittest

from cli import SOURCE, ZIPAGE, Cli


class Help(Cli):
    def test_help_lists_every_command_and_the_exit_codes(self):
        result = self.zipage("--help")
        self.assertEqual(result.returncode, 0)
        for word in ("generate", "inspect", "demo", "chat", "completion", "eval", "bench-throughput", "bench-serve",
                        "bench-latency", "run-batch", "130"):
            self.assertIn(word, result.stdout)

    def test_no_command_is_wrong_usage_and_says_what_there_is(self):
        result = self.zipage()
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stdout, "")
        self.assertIn("usage: zipage COMMAND", result.stderr)

    def test_version_is_the_project_s(self):
        version = re.search(r"project\(zipage VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)
        self.assertEqual(self.zipage("--version").stdout, f"zipage {version}\n")

    def test_help_of_a_command_is_grouped_and_fits_80_columns(self):
        for command in ("generate", "inspect", "demo", "chat", "completion", "eval", "bench-throughput", "bench-serve",
                        "bench-latency", "run-batch"):
            result = self.zipage(command, "--help")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80, command)
        text = self.zipage("generate", "--help").stdout
        for heading in ("Model:", "Memory:", "Scheduling:", "KV compression:", "Machine:"):
            self.assertIn(f"\n{heading}\n", text)
        self.assertRegex(text, r"--kv-budget TOKENS\s+tokens kept")
        self.assertIn("[2048]", text)
        self.assertIn("--[no-]enable-prefix-caching", text)


class Flags(Cli):
    def test_a_list_takes_several_words(self):
        self.assert_fails(self.zipage("generate", "--cudagraph-capture-sizes", 1, "two", "-p", "a"), 2, "1,two")

    def test_an_unknown_command_names_the_nearest(self):
        self.assert_fails(self.zipage("genrate"), 2, "unknown command 'genrate'", "'generate'")

    def test_an_unknown_flag_names_the_nearest(self):
        self.assert_fails(self.zipage("generate", "--kv-bugdet", "512"), 2, "unknown flag --kv-bugdet", "--kv-budget?")
        self.assert_fails(self.zipage("generate", "--no-enable-prefix-cachin"), 2, "--no-enable-prefix-caching?")
        self.assert_fails(self.zipage("generate", "-z"), 2, "-z")

    def test_a_flag_without_its_value_is_named(self):
        self.assert_fails(self.zipage("generate", "--kv-budget"), 2, "kv-budget")

    def test_a_bad_value_names_flag_and_value(self):
        self.assert_fails(self.zipage("generate", "--kv-budget", "lots"), 2, "kv-budget", "'lots'")
        self.assert_fails(self.zipage("generate", "--kv-policy=contnet"), 2, "did you mean content?")
        self.assert_fails(self.zipage("generate", "--max-tokens", "0"), 2, "max-tokens", "at least 1")

    def test_a_second_word_is_refused(self):
        self.assert_fails(self.zipage("generate", "some/model", "other"), 2, "unexpected word 'other'")


class ConfigFile(Cli):
    def test_an_unknown_key_names_file_line_and_the_nearest(self):
        path = self.write("x.yaml", "seed: 1\nkv_bugdet: 512\n")
        self.assert_fails(self.zipage("generate", "--config", path), 2, f"{path}:2: ", "did you mean 'kv-budget'?")

    def test_a_bad_value_names_file_and_line(self):
        path = self.write("x.yaml", "kv-budget: lots\n")
        self.assert_fails(self.zipage("generate", "--config", path), 2, f"{path}:1: --kv-budget")

    def test_a_file_that_is_no_yaml_or_not_there_is_named(self):
        path = self.write("x.yaml", "a: [\n")
        self.assert_fails(self.zipage("generate", "--config", path), 2, str(path))
        self.assert_fails(self.zipage("generate", "--config", "no/such.yaml"), 3, "no/such.yaml")


class Completions(Cli):
    def test_each_shell_s_script_knows_commands_flags_and_choices(self):
        for shell in ("bash", "zsh", "fish"):
            script = self.zipage("completion", shell)
            self.assertEqual(script.returncode, 0, script.stderr)
            for word in ("generate", "kv-policy", "snapkv", "no-enable-prefix-caching"):
                self.assertIn(word, script.stdout, shell)

    def test_bash_completes_flags_and_choices(self):
        def complete(*words):
            array = " ".join(f"'{word}'" for word in words)
            script = (f"source <('{ZIPAGE}' completion bash); COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; "
                      "_zipage; printf '%s\\n' \"${COMPREPLY[@]}\"")
            return subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout.split()

        self.assertEqual(complete("zipage", "gen"), ["generate"])
        self.assertEqual(complete("zipage", "generate", "--kv-b"), ["--kv-budget"])
        self.assertEqual(complete("zipage", "generate", "--kv-policy", "s"), ["snapkv", "streaming"])

    def test_an_unknown_shell_is_refused(self):
        self.assert_fails(self.zipage("completion", "tcsh"), 2, "tcsh")


if __name__ == "__main__":
    unittest.main()
