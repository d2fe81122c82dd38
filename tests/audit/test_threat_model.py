"""The tables of attacks in docs/threat-model.md: each row names tests that exist.

A row that says "prevented" has a twin: the same attack on a naive variant, where it succeeds. Otherwise a
test could pass because the attack is clumsy. `TWINS` names the test that has both, or the naive variant's.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "threat-model.md"
AUDIT = "tests/audit"
NONE = "none"

TWINS = {
    "the other party's numbers, by a crafted public key, crafted seeds or a reply that is not uniform": (
        f"{AUDIT}/test_blind_reply.py",
        "test_a_crafted_key_shows_multipliers_through_one_zero_and_not_through_ours",
    ),
    "large operands that show above the mask": (
        f"{AUDIT}/test_blind_reply.py",
        "test_large_operands_show_nothing_above_masks_that_fill_the_modulus",
    ),
    "sparsity of columns from the time or size of a reply": (
        f"{AUDIT}/test_blind_reply.py",
        "test_zero_columns_take_the_same_path",
    ),
    "the same people with other rows of its own, or the same question under another name": (
        f"{AUDIT}/test_blind_scores.py",
        "test_other_rows_of_the_label_party_for_the_same_people",
    ),
    "more than p + m bits from a score, by chosen operands": (
        f"{AUDIT}/test_blind_scores.py",
        "test_a_score_tells_p_plus_m_bits_and_no_more",
    ),
    "the same bytes for two models, so that two scores have one blur": (
        f"{AUDIT}/test_blind_blur.py",
        "test_the_same_ciphertexts_for_another_model_are_another_question",
    ),
    "equal rows, which could share one blur and one count": (
        f"{AUDIT}/test_blind_blur.py",
        "test_equal_rows_of_one_question_have_blurs_of_their_own",
    ),
    "a release again after an interruption": (
        f"{AUDIT}/test_blind_blur.py",
        "test_a_release_from_the_same_checkpoint_has_the_same_answer",
    ),
    "another share of the model under the same question": (
        f"{AUDIT}/test_blind_blur.py",
        "test_another_share_of_the_model_is_another_question",
    ),
    "the same bytes about people in other places, or for another number of rows": (
        f"{AUDIT}/test_blind_repeats.py",
        "test_the_same_bytes_about_people_in_other_places",
    ),
    "the same bytes under another key, after an interruption (Paillier)": (
        f"{AUDIT}/test_blind_repeats.py",
        "test_the_same_bytes_under_another_key",
    ),
    "the same question many times, to compare fresh replies under one blur": (
        f"{AUDIT}/test_blind_repeats.py",
        "test_the_same_question_again_and_again",
    ),
    "another question about the same people after each interruption, in one run": (
        f"{AUDIT}/test_blind_repeats.py",
        "test_another_question_after_each_interruption",
    ),
    "the same people under other columns, in transfer learning too": (
        f"{AUDIT}/test_blind_repeats.py",
        "test_people_of_transfer_learning_under_other_columns",
    ),
    "more than p + m bits of a party's part of a score": (
        f"{AUDIT}/test_blind_repeats.py",
        "test_a_label_party_and_a_helper_read_a_share_modulo_what_is_booked",
    ),
    "the label party's key of scores, bit by bit, by other answers to an evaluation that is repeated": (
        f"{AUDIT}/test_blind_repeats.py",
        "test_other_answers_to_a_question_get_no_second_verdict",
    ),
    "columns from scores, by lattice reduction": (
        f"{AUDIT}/test_attack_scores.py",
        "test_exact_scores_give_the_columns_to_the_last_bit_and_ours_do_not",
    ),
    "an earlier round played again with another difference": (
        f"{AUDIT}/test_blind_training.py",
        "test_going_back_with_another_difference",
    ),
    "a block of two other parties": (
        f"{AUDIT}/test_blind_training.py",
        "test_a_holder_and_one_party_do_not_rebuild_a_block_of_two_others",
    ),
    "anything from its shares": (
        f"{AUDIT}/test_masks.py",
        "test_shares_of_two_secrets_are_uniform_and_the_same",
    ),
    "CKKS key from replies (Li and Micciancio)": (
        f"{AUDIT}/test_attack_ckks_key.py",
        "test_two_float_replies_give_the_whole_key",
    ),
    "multipliers from c1, from noise": (
        f"{AUDIT}/test_attack_ckks_multipliers.py",
        "test_ckks_multipliers_from_c1",
    ),
    "labels from own gradients past the ledger's line": (
        "tests/protocols/test_ledger.py",
        "test_past_the_line_linear_algebra_does_find_the_residuals",
    ),
    "the same ciphertext again, after a restart too": (
        "tests/crypto/test_memory.py",
        "test_a_replay_after_a_restart",
    ),
    "other sums of the same batch after a broken connection": (
        "tests/protocols/test_ledger.py",
        "test_a_naive_key_holder_gives_all_residuals_away",
    ),
    "more ciphertexts than sums or scores take": (
        f"{AUDIT}/test_attack_opening_layout.py",
        "test_one_ciphertext_for_each_sum_gives_every_label_away",
    ),
    "multipliers from Paillier randomness, Jacobi parity": (
        f"{AUDIT}/test_attack_paillier_randomness.py",
        "test_multipliers_from_randomness",
    ),
    "a Paillier key with gcd(n, phi(n)) > 1": (
        f"{AUDIT}/test_attack_paillier_key.py",
        "test_without_a_proof_the_key_holder_reads_people_through_masks",
    ),
    "decryption of 0 or multiples of p, malformed ciphertexts, damaged bytes": (
        f"{AUDIT}/test_attack_chosen_ciphertext.py",
        "test_opening_zero",
    ),
    "unmasked low bits, masks used twice, narrow masks": (
        f"{AUDIT}/test_attack_float_mask.py",
        "test_labels_under_float_masks",
    ),
    "magnitudes of values in metadata": (
        f"{AUDIT}/test_attack_metadata.py",
        "test_phe_shows_the_magnitude",
    ),
    "ids of people that only one party has": (
        "tests/data/test_psi_attacks.py",
        "test_hashed_ids_fall_to_a_dictionary",
    ),
    "idle connections that keep peers out": (
        "tests/transport/test_network_strangers.py",
        "test_idle_callers_keep_nobody_out",
    ),
    "the passphrase, by guessing against a file": (
        "tests/transport/test_identity.py",
        "test_guessing_costs_scrypt_and_in_openssl_s_form_two_thousand_hashes",
    ),
}
"""The test with the naive variant, by the attack's first cell."""


@cache
def rows() -> list[list[str]]:
    """The cells of all rows of the tables under "Attacks"."""
    section = PAGE.read_text(encoding="utf-8").split("\n## Attacks\n")[1].split("\n## ")[0]
    cells = [line.strip("|\n ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [row for row in cells if row[0] != "attack"]


@cache
def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_tables_are_read() -> None:
    assert len(rows()) > 40
    assert all(len(row) == 6 for row in rows()), [row for row in rows() if len(row) != 6]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_a_row_names_tests_that_exist(row: list[str]) -> None:
    named = re.findall(r"`(tests/[^`]+)`", row[5])
    assert named, row
    for path in named:
        assert any(name.startswith("test_") for name in functions(path)), path


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_what_is_prevented_succeeds_against_a_naive_variant(row: list[str]) -> None:
    """Or the row says why there is none."""
    attack, _, _, result, naive, tests = row
    if not result.startswith("prevented"):
        assert naive == "-", "an attack that succeeds needs no naive variant"
        return
    if naive.startswith(NONE):
        assert attack not in TWINS and ": " in naive
        return
    path, test = TWINS[attack]
    assert naive == "falls" and f"`{path}`" in tests and test in functions(path)


def test_no_twin_is_left_over() -> None:
    assert set(TWINS) <= {row[0] for row in rows()}
