SELECT fence, version FROM names WHERE name = ?1;
