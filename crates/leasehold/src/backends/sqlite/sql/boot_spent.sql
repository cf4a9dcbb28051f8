-- Refused ids stay refused, for long enough in any case. ?1 until when
UPDATE spent SET until_us = ?1;
